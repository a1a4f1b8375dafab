# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Create variables that functions and other tasks find by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def aside(device: str) -> Iterator[None]:
    """Run operations at once, on a device, wherever the program is: in a scope, or in a tape."""
    from tensorflow.python.eager import context, record
    from tensorflow.python.framework import ops

    with context.eager_mode(), record.stop_recording(), ops.device(None), ops.device(device):
        yield


def handle_in_graph(name: str, dtype: Any, shape: Sequence[int] = ()) -> Any:
    """Add the handle of a named variable to the default graph, on its device of now."""
    from tensorflow.python.ops import gen_resource_variable_ops

    return gen_resource_variable_ops.var_handle_op(dtype=dtype, shape=shape, shared_name=name)


def read_in_graph(name: str, dtype: Any, shape: Sequence[int] = ()) -> Any:
    """Add the value of a named variable to the default graph, on its device of now."""
    from tensorflow.python.ops import gen_resource_variable_ops

    handle = handle_in_graph(name, dtype, shape)
    return gen_resource_variable_ops.read_variable_op(handle, dtype)


class Named:
    """A variable of this process that is not a Python variable of the program.

    Attributes:
      name: its shared name.
      device: where it is.
    """

    def __init__(self, name: str, dtype: Any, shape: Sequence[int], device: str):
        """Make the handle of a variable that has not been initialized."""
        from tensorflow.python.ops import gen_resource_variable_ops

        self.name, self.device = name, device
        self._dtype = dtype
        with aside(device):
            self.handle = gen_resource_variable_ops.var_handle_op(
                dtype=dtype, shape=shape, shared_name=name
            )

    def assign(self, value: Any) -> None:
        """Give it a value; a tensor is taken over without a copy."""
        from tensorflow.python.ops import gen_resource_variable_ops

        with aside(self.device):
            gen_resource_variable_ops.assign_variable_op(self.handle, value)

    def read(self) -> Any:
        """Return its value, without a copy."""
        from tensorflow.python.ops import gen_resource_variable_ops

        with aside(self.device):
            return gen_resource_variable_ops.read_variable_op(self.handle, self._dtype)

    def destroy(self) -> None:
        """Free it; it need not have a value."""
        from tensorflow.python.ops import gen_resource_variable_ops

        with aside(self.device):
            gen_resource_variable_ops.destroy_resource_op(self.handle, ignore_lookup_error=True)
