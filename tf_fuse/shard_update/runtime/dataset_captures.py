# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Note the variables that functions of datasets read, since these cannot be sharded.

A dataset keeps the handles that its functions have captured, and gives them to operations at any
time, on threads of TensorFlow's own: nobody could put a value together for it. So a variable that
one has is not sharded, and one that is sharded already is an error for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from tf_fuse._tensorflow.graphs import dataset_functions
from tf_fuse.sharded_variable import handle_access

# Handles, by id, that functions of datasets have.
_captured: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def watch_datasets() -> None:
    """Make each function of a dataset note the variables that it reads; once per process."""

    def see(wrapper: Any) -> None:
        _note(getattr(wrapper.function, "captured_inputs", ()))

    dataset_functions.call_with_each(see)


def is_captured(handle: Any) -> bool:
    """Return whether a dataset has a handle."""
    return id(handle) in _captured


def _note(tensors: Iterable[Any]) -> None:
    from tensorflow.python.framework import dtypes, errors, ops

    for tensor in handle_access.originals(list(tensors)):
        if not isinstance(tensor, ops.EagerTensor) or tensor.dtype != dtypes.resource:
            continue
        if handle_access.is_sharded_here(tensor):
            raise errors.FailedPreconditionError(
                None,
                None,
                "tf_fuse: a function of a dataset reads a variable that lies in shards between "
                "steps (shard_weight_update), and it may read it at any time. Make the dataset "
                "before the first step, so that the variable is not sharded; or read the variable "
                "first, as with tf.constant(variable), and let the function use that.",
            )
        _captured[id(tensor)] = tensor
