# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variables that functions of datasets read.

A dataset keeps the handles that its functions have captured, and gives them to operations at any
time, on threads of TensorFlow's own: nobody could put a value together for it. So a variable that
one has is not cut, and one that is cut already is an error for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from tf_fuse.shard_update import lending
from tf_fuse.shard_update.inits import tell_of_each

_MARK = "_tf_fuse_notes_captures"
# Handles, by id, that functions of datasets have.
_captured: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def watch_datasets() -> None:
    """Has each function of a dataset note the variables that it reads; once per process."""
    from tensorflow.python.data.ops import structured_function

    def tell(wrapper: Any) -> None:
        _note(getattr(wrapper.function, "captured_inputs", ()))

    tell_of_each(structured_function.StructuredFunctionWrapper, _MARK, tell)


def is_captured(handle: Any) -> bool:
    """Whether a dataset has a handle."""
    return id(handle) in _captured


def _note(tensors: Iterable[Any]) -> None:
    from tensorflow.python.framework import dtypes, errors, ops

    for tensor in lending.originals(list(tensors)):
        if not isinstance(tensor, ops.EagerTensor) or tensor.dtype != dtypes.resource:
            continue
        if lending.is_cut(tensor):
            raise errors.FailedPreconditionError(
                None,
                None,
                "tf_fuse: a function of a dataset reads a variable of which each replica keeps a "
                "part between steps (shard_weight_update), and it would do so at any time. Make "
                "the dataset before the first step, so that the variable is not cut; or read the "
                "variable first, as with tf.constant(variable), and have the function use that.",
            )
        _captured[id(tensor)] = tensor
