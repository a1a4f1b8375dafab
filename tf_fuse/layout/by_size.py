# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a function by a plan for each size of what it is fed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf

from tf_fuse.layout.execution.execute import Execution
from tf_fuse.layout.optimize.allowed_strategies import AUTO
from tf_fuse.layout.optimize.problem import DATA
from tf_fuse.layout.planning.pipeline import FunctionPlan, function_problem, plan
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh

# Options of `plan` that a search for what cannot be split as asked has, too.
_OF_ALL: Final = (
    "allowed", "limits", "links", "memory_limit_bytes", "rates", "slots", "steps", "training",
)  # fmt: skip


class SizedExecution:
    """A function that plans when it is called with new shapes; called as the function is."""

    def __init__(self, function: Any, mesh: Mesh, devices: Any, options: Mapping[str, Any]):
        """Keep them; nothing is planned yet.

        Args:
          function: a callable.
          mesh: the devices.
          devices: as of `tf_fuse.layout.execute`.
          options: as of `tf_fuse.layout.plan`.
        """
        self._function = function
        self._mesh = mesh
        self._devices = devices
        self._options = dict(options)
        self._running: dict[str, Execution] = {}
        self._planning = threading.Lock()

    @property
    def plans(self) -> tuple[FunctionPlan, ...]:
        """The plans, the first one first."""
        return tuple(one.plan for one in self._running.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; plan it first if no call had these shapes and types.

        Raises:
          LayoutError: as of `tf_fuse.layout.plan` and `tf_fuse.layout.execute`.
        """
        given = tf.nest.map_structure(_tensor, (args, kwargs))
        specs = tf.nest.map_structure(_spec, given)
        key = str(specs)
        with self._planning:
            if key not in self._running:
                found = self._planned(*specs)
                self._running[key] = Execution(found, self._devices)
        return self._running[key](*given[0], **given[1])

    def release(self) -> None:
        """Give the variables their values back; the next call plans anew.

        In several processes, all must call this at once.
        """
        for one in self._running.values():
            one.release()
        self._running.clear()

    def _planned(self, args: Any, kwargs: Any) -> FunctionPlan:
        """Return a plan; variables keep the layouts that the first one gave them."""
        given = dict(self._options)
        if not self._running:
            return plan(self._function, self._mesh, args, kwargs, **given)
        try:
            return plan(self._function, self._mesh, args, kwargs, **given, keep_layouts=True)
        except LayoutError:
            # Probably a last, smaller batch, which cannot be split as asked.
            known = {name: given[name] for name in _OF_ALL if name in given}
            if given.get("mode") != DATA:
                return plan(
                    self._function, self._mesh, args, kwargs, **known, mode=AUTO, keep_layouts=True
                )
            limits = known.pop("limits", None)
            problem = function_problem(self._function, self._mesh, args, kwargs, **known)
            whole = dict.fromkeys(problem.function.inputs)
            problem = function_problem(
                self._function, self._mesh, args, kwargs, **known, batch=whole
            )
            return problem.search(DATA, limits=limits, keep_layouts=True)


def _tensor(value: Any) -> Any:
    """Return a tensor of what is fed; other values stay."""
    if tf.is_tensor(value) or value is None or isinstance(value, (bool, str)):
        return value
    return tf.convert_to_tensor(value)


def _spec(value: Any) -> Any:
    return tf.TensorSpec(value.shape, value.dtype) if tf.is_tensor(value) else value
