# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a function's checks, prints and summaries once in each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.kernels.local_operation import create, holder
from tf_fuse.layout.trace.effects import Captured, Effect, Holder


def run(effects: Sequence[Effect], observed: Mapping[str, Any]) -> list[Any]:
    """Make operations again, where the runtime wants to have them.

    Args:
      effects: in their order.
      observed: by name, the whole tensors of the plan that they read.

    Returns:
      Those that were made.
    """
    values = dict(observed)
    made: list[Any] = []
    for one in effects:
        if one.operation is None:
            values.update(dict.fromkeys(one.outputs, tf.convert_to_tensor(one.value)))
            continue
        holders: dict[str, Any] = {}
        inputs = []
        for argument in one.arguments:
            if isinstance(argument, Captured):
                inputs.append(argument.handle)
            elif isinstance(argument, Holder):
                if argument.variable not in holders:
                    holders[argument.variable] = holder(values[argument.tensor])
                inputs.append(holders[argument.variable])
            else:
                assert argument is not None
                inputs.append(values[argument])
        # In the program's order, so that prints come in order.
        with tf.device(one.operation.device or None), tf.control_dependencies(made[-1:]):
            made.append(create(one.operation, inputs))
        outputs = [each for each in made[-1].outputs if each.dtype != tf.resource]
        values.update(zip(one.outputs, outputs, strict=False))
    return made
