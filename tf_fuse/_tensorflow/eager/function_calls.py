# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `Context`, so that a function that is called or removed may have another form.

A `tf.function` that is called from Python goes through `Context.call_function`, by its name and
with all its inputs, captured handles included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Member, Takes

# Calls a function by its name: the context, the name, the inputs, and the number of results.
Call = Callable[[Any, bytes, Sequence[Any], int], Any]
Forget = Callable[[Any, bytes], None]

_CLASS = "tensorflow.python.eager.context:Context"
_FEATURES = (feature_names.HANDLE_PACKING, feature_names.WEIGHT_UPDATES)
_CALL = Member(
    _CLASS,
    "call_function",
    Takes("self", "name", "tensor_inputs", "num_outputs"),
    "A function that updates weights, or takes many handles, is called in another form.",
    _FEATURES,
    AT_FIRST_USE,
)
_REMOVE = Member(
    _CLASS,
    "remove_function",
    Takes("self", "name"),
    "The other forms of a function go together with it.",
    _FEATURES,
    AT_FIRST_USE,
)
_USED = (
    Member(
        _CLASS,
        name,
        Takes("self", *parameters),
        "to keep other forms of functions",
        (*_FEATURES, feature_names.LOCAL_CLUSTER),
    )
    for name, *parameters in (
        ("add_function_def", "fdef"),
        ("get_function_def", "name"),
        ("has_function", "name"),
        ("list_function_names",),
    )
)
MEMBERS = (_CALL, _REMOVE, *_USED)

_extended: set[str] = set()
_forgets: list[Forget] = []


def extend(who: str, call: Callable[[Call, Any, Any, Any, int], Any], forget: Forget) -> None:
    """Extend how functions are called and removed, once per process.

    Args:
      who: a name of the caller, which extends it once.
      call: gets what was there before, and then what it gets.
      forget: gets the context and the name of a function that is gone.
    """
    if who in _extended:
        return
    cls = _CALL.resolve()
    stock_call = cls.call_function
    stock_remove = cls.remove_function

    def call_function(self: Any, name: Any, tensor_inputs: Any, num_outputs: int) -> Any:
        return call(stock_call, self, name, tensor_inputs, num_outputs)

    def remove_function(self: Any, name: Any) -> None:
        stock_remove(self, name)
        forget(self, name if isinstance(name, bytes) else name.encode())

    call_function.__doc__ = stock_call.__doc__
    remove_function.__doc__ = stock_remove.__doc__
    monkey_patch.replace(_CALL, call_function)
    monkey_patch.replace(_REMOVE, remove_function)
    _forgets.append(forget)
    _extended.add(who)


def forget(context: Any, name: bytes) -> None:
    """Drop the other forms of a function that TensorFlow cannot remove now."""
    for one in _forgets:
        one(context, name)


def lacks_our_ops(error: Any) -> bool:
    """Return whether a task without the plugin could not make the other form of a function.

    It says so before anything ran.
    """
    from tensorflow.python.framework import errors

    return (
        isinstance(error, (errors.NotFoundError, errors.InvalidArgumentError))
        and "Op type not registered" in error.message
        and "TfFuse>" in error.message
    )


def calling_task(context: Any) -> str:
    """Return the task that a function called now runs on; "" is here.

    Its form is "/job:worker/replica:0/task:1".
    """
    from tensorflow.python.framework import device

    spec = device.DeviceSpec.from_string(context.device_name or "")
    return spec.replace(device_type=None, device_index=None).to_string()
