# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run operations on lists of tensors: the elements are a device's slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_fuse.layout.execution.kernels.local_operation import LocalOperation


def with_element_shape(number: int, output: int, of_list: bool) -> Callable[..., list[Any]]:
    """Rebuild an operation that takes the shape of elements as an input.

    Args:
      number: of that input.
      output: whose shape has that of elements.
      of_list: whether the output counts elements before it.
    """

    def kernel(device: LocalOperation, *inputs: Any) -> list[Any]:
        shape = device.shape(output)[1 if of_list else 0 :]
        return device.again(inputs, {number: np.array(shape, np.int32)})

    return kernel
