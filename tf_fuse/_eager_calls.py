# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What stands between TensorFlow's functions and the runtime.

A `tf.function` that is called from Python goes through `Context.call_function`, by its name and
with all its inputs, captured handles included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# Calls a function by its name: the context, the name, the inputs, and the number of results.
Call = Callable[[Any, bytes, Sequence[Any], int], Any]


def extend(
    mark: str,
    call: Callable[[Call, Any, Any, Any, int], Any],
    forget: Callable[[Any, bytes], None],
) -> None:
    """Extends TensorFlow's eager context, once per process.

    Args:
      mark: attribute of the class that says that it has been done.
      call: gets what was there before, and then what it gets.
      forget: gets the context and the name of a function that is gone.
    """
    from tensorflow.python.eager import context as context_module

    cls = context_module.Context
    if getattr(cls, mark, False):
        return
    stock_call = cls.call_function
    stock_remove = cls.remove_function

    def call_function(self: Any, name: Any, tensor_inputs: Any, num_outputs: int) -> Any:
        return call(stock_call, self, name, tensor_inputs, num_outputs)

    def remove_function(self: Any, name: Any) -> None:
        stock_remove(self, name)
        forget(self, name if isinstance(name, bytes) else name.encode())

    call_function.__doc__ = stock_call.__doc__
    remove_function.__doc__ = stock_remove.__doc__
    cls.call_function = call_function
    cls.remove_function = remove_function
    setattr(cls, mark, True)


def lacks_our_ops(error: Any) -> bool:
    """Whether a task without the plugin could not make the twin: it says so before anything ran."""
    from tensorflow.python.framework import errors

    return (
        isinstance(error, (errors.NotFoundError, errors.InvalidArgumentError))
        and "Op type not registered" in error.message
        and "TfFuse>" in error.message
    )


def calling_task(context: Any) -> str:
    """The task that a function called now runs on, "/job:worker/replica:0/task:1"; "" is here."""
    from tensorflow.python.framework import device

    spec = device.DeviceSpec.from_string(context.device_name or "")
    return spec.replace(device_type=None, device_index=None).to_string()
