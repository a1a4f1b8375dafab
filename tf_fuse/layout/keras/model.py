# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run Keras's `fit`, `evaluate` and `predict` by plans.

Keras asks a model to make the functions that run a step over an iterator (`make_train_function` and
its like), and keeps them until the model is compiled again. This module replaces these functions.
The first batch of a shape plans its step, with the updates of the optimizer and the metrics; later
batches of the shape run by that plan. The first plan lays the variables out, and later plans keep
their layouts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.util import nest

from tf_fuse._deprecated.former_keyword import former_keyword
from tf_fuse._tensorflow.keras import models as keras_models
from tf_fuse._tensorflow.keras.models import STEPS
from tf_fuse.layout.execution.communication.communicator import Communicator
from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives
from tf_fuse.layout.execution.devices import devices_of
from tf_fuse.layout.execution.execute import Execution
from tf_fuse.layout.execution.process_data import ProcessParts
from tf_fuse.layout.execution.variables import variable
from tf_fuse.layout.keras.batch_structure import PARTS, Batch, batch_of
from tf_fuse.layout.keras.options import (
    OF_PROBLEM,
    OF_SEARCH,
    check,
    check_options,
    without_rules,
)
from tf_fuse.layout.optimize.allowed_strategies import AUTO
from tf_fuse.layout.optimize.problem import DATA
from tf_fuse.layout.planning.given_layouts import layouts_by_key, matches
from tf_fuse.layout.planning.pipeline import FunctionPlan, FunctionProblem, function_problem
from tf_fuse.layout.planning.sharding_constraints import annotations_of
from tf_fuse.layout.trace.records import concrete_function, for_a_plan
from tf_fuse.layout.trace.variable_name import variable_name
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh, check_mesh

_OF_VARIABLES: Final = (
    "aggregation", "constraint", "dtype", "initial_value", "name", "shape", "synchronization",
    "trainable",
)  # fmt: skip


class KerasExecution:
    """A Keras model whose steps run by plans, until it is released.

    Attributes:
      model: that is run.
      mesh: the devices.
    """

    def __init__(
        self,
        model: Any,
        mesh: Mesh,
        devices: Any,
        options: Mapping[str, Any],
        data_per_process: bool = False,
    ):
        """Take the place of the functions that Keras makes for its loops.

        Args:
          model: of Keras 3 on TensorFlow, or of tf_keras.
          mesh: the devices.
          devices: as of `tf_fuse.layout.execute`.
          options: as of `tf_fuse.layout.plan`, for the plans of all steps.
          data_per_process: as of `tf_fuse.layout.execute`.

        Raises:
          LayoutError: `model` is not a Keras model, or runs by plans already; or an option is
            unknown.
        """
        check_mesh(mesh)
        check(model, options)
        self.model = model
        self.mesh = mesh
        self._devices = devices
        self._options = dict(options)
        self._process_parts = _parts_on(mesh, devices) if data_per_process else None
        self._optimizer = getattr(model, "optimizer", None)
        # The size of the batch that was planned first.
        self._size: int | None = None
        self._names: set[str] = set()
        self._taken: dict[int, Any] = {}
        self._released = False
        keras_models.replace_makers(model, lambda step: functools.partial(self._make, step))

    @property
    def num_shards(self) -> int:
        """Into how many parts a batch is split; each process feeds one."""
        return 1 if self._process_parts is None else self._process_parts.num_shards

    @property
    def shard_id(self) -> int:
        """Which of the parts this process feeds."""
        return 0 if self._process_parts is None else self._process_parts.shard_id

    def parts(self, data: Any) -> Any:
        """Return this process's parts of some data, for `fit` and its like.

        Args:
          data: a `tf.data.Dataset` of whole batches, the same in all processes; or a callable that
            takes `num_shards` and `shard_id`, and returns a dataset of this process's parts.

        Raises:
          LayoutError: it is neither, or the processes' datasets have other numbers of batches.
        """
        parts = self._process_parts or _parts_on(self.mesh, self._devices, False)
        return parts.of(data)

    @property
    def plans(self) -> dict[str, tuple[FunctionPlan, ...]]:
        """The plans of each step that has some, the first one first."""
        made = {step: keras_models.made(self.model, step) for step in STEPS}
        return {
            step: tuple(one.plans.values())
            for step, one in made.items()
            if isinstance(one, _Step) and one.plans
        }

    @former_keyword("pins", "constraints")
    def plan(self, step: str, data: Any, **options: Any) -> FunctionPlan:
        """Plan a step for batches of one shape, which then run by this plan.

        Args:
          step: "train", "test" or "predict".
          data: a batch as Keras has it, x, (x, y) or (x, y, sample_weight); of tensors, arrays or
            `tf.TensorSpec`s. With data_per_process a part, as each process feeds it.
          **options: in place of the model's own; and constraints.

        Raises:
          LayoutError: as of `tf_fuse.layout.plan`; such batches run already.
        """
        if step not in STEPS:
            raise LayoutError(f"a step is one of {', '.join(STEPS)}, got {step!r}")
        check_options(options)
        if self._released:
            raise LayoutError(
                f"model {self.model.name!r} was released; call layout.lay_out again to plan for it"
            )
        made: _Step = self._make(step)
        return made.plan(self.whole(batch_of(data)), {**self._options, **options})

    def release(self) -> None:
        """Give the model its own functions back, and its variables their values.

        In several processes, all must call this at once. A second call does nothing.
        """
        if self._released:
            return
        # A failed release can be repeated, so nothing is forgotten before it is released.
        for one in list(self._taken.values()):
            variable.release(one)
        self._taken.clear()
        keras_models.put_back_makers(self.model)
        self._released = True

    def problem(
        self, step: str, batch: Batch, options: Mapping[str, Any], whole: bool = False
    ) -> FunctionProblem:
        """Return the search problem of a step; `whole` is for batches that are not split."""
        own = getattr(self.model, f"{step}_step")

        made: list[Any] = []

        def lifted(make: Any, **given: Any) -> Any:
            made.append(_lifted(make, **given))
            return made[-1]

        def function(*tensors: Any) -> Any:
            # An optimizer and metrics make their variables in their first step.
            with tf.variable_creator_scope(lifted):
                return own(batch.packed(tensors))

        function.__name__ = f"{self.model.name}_{step}_step"
        given = {name: options[name] for name in OF_PROBLEM if name in options}
        with for_a_plan():
            concrete = concrete_function(function, batch.specs)
            if made:
                # As tf.function does: what has its variables may do something else.
                concrete = concrete_function(function, batch.specs)
        found = function_problem(concrete, self.mesh, **given)
        away = set(PARTS) | {one.name for one in batch.specs} | self._names
        away -= set(found.function.inputs)
        split = {n: at for n, at in (options.get("batch") or {}).items() if n not in away}
        if whole:
            split |= dict.fromkeys(found.function.inputs)
        if not split:
            return found
        return function_problem(concrete, self.mesh, batch=split, **given)

    def search(self, step: str, batch: Batch, options: Mapping[str, Any]) -> FunctionPlan:
        """Return the plan of a step; variables keep the layouts that they have."""
        problem = self.problem(step, batch, options)
        given = {name: options[name] for name in OF_SEARCH if name in options}
        self._leave_out(step, given, problem)
        try:
            found = problem.search(**given, keep_layouts=True)
        except LayoutError:
            # Probably a last, smaller batch: only its size differs from what was planned before.
            if self._size is None or batch.size == self._size:
                raise
            found = self._otherwise(step, batch, options, problem)
        if self._size is None:
            self._size = batch.size
        self._names |= set(problem.function.tensors)
        return found

    def whole(self, batch: Batch) -> Batch:
        """Return a batch with the specs of the whole one, from this process's part."""
        parts, dims = self._process_parts, self._options.get("batch") or {}
        if parts is None:
            return batch
        specs = [
            tf.TensorSpec(parts.whole_shape(one.shape, dims.get(one.name, 0)), one.dtype, one.name)
            for one in batch.specs
        ]
        return batch._replace(specs=tuple(specs))

    def in_step(self, step: str, data: Any) -> Iterator[Any]:
        """Return batches of an iterator, as long as all processes have one."""
        parts = self._process_parts
        if parts is None:
            return iter(data)
        what = f"the step {step!r} of model {self.model.name!r}"
        return parts.together(iter(data), what, lambda one: batch_of(one).key)

    def take(self, plan: FunctionPlan) -> Execution:
        """Execute a plan."""
        found = Execution(plan, self._devices, self._process_parts is not None)
        self._taken |= {id(one): one for one in found.variables.values()}
        return found

    def _otherwise(
        self, step: str, batch: Batch, options: Mapping[str, Any], problem: FunctionProblem
    ) -> FunctionPlan:
        """Return the plan of a batch that cannot be split as is asked for."""
        given: dict[str, Any] = {"limits": options.get("limits"), "keep_layouts": True}
        if options.get("mode") == DATA:
            return self.problem(step, batch, options, whole=True).search(DATA, **given)
        return problem.search(AUTO, **given)

    def _leave_out(self, step: str, given: dict[str, Any], problem: FunctionProblem) -> None:
        """Name that another step has, and this one does without."""
        there = set(problem.function.tensors)
        elsewhere = self._names | set(PARTS)
        optimizer = getattr(self.model, "optimizer", None)
        known = [*self.model.variables, *_listed(getattr(optimizer, "variables", ()))]
        elsewhere |= {variable_name(one) for one in known} if step != "train" else set()
        away = elsewhere - there
        if given.get("layouts") is not None:
            own = [*problem.function.inputs, *problem.function.variables]
            given["layouts"] = {
                key: one
                for key, one in layouts_by_key(given["layouts"], self.mesh).items()
                if key in there or matches(key, own) or not matches(key, elsewhere)
            }
        if given.get("renamed"):
            given["renamed"] = [one for one in given["renamed"] if one not in away]
        if given.get("dimensions"):
            names = annotations_of(given["dimensions"])
            left = {name: one for name, one in names.items() if name not in away}
            given["dimensions"] = left
            if given.get("rules") is not None and left != names:
                given["rules"] = without_rules(given["rules"], names, left)

    def _make(self, step: str, force: bool = False) -> Any:
        """Return the function that Keras's loop runs; a new one after the model is compiled."""
        made = keras_models.made(self.model, step)
        if made is not None and not force:
            return made
        if getattr(self.model, "run_eagerly", False):
            raise LayoutError(
                f"model {self.model.name!r} is compiled with run_eagerly=True, and its steps run "
                "by plans, which are of graphs; compile it without, or release it first"
            )
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not self._optimizer:
            self._forget(self._optimizer)
            self._optimizer = optimizer
        made = _Step(self, step)
        keras_models.set_made(self.model, step, made)
        return made

    def _forget(self, optimizer: Any) -> None:
        """Release the variables of an optimizer that the model no longer has."""
        for one in _listed(getattr(optimizer, "variables", ())):
            inner = getattr(one, "value", one) if not isinstance(one, tf.Variable) else one
            if id(inner) in self._taken:
                variable.release(inner)
                del self._taken[id(inner)]


class _Step:
    """A step over an iterator, as Keras's loops call it.

    Attributes:
      plans: by keys of batches.
    """

    def __init__(self, owner: KerasExecution, step: str):
        self._owner = owner
        self._step = step
        self.plans: dict[str, FunctionPlan] = {}
        self._running: dict[str, Execution] = {}
        # The iterator of Keras's loop, and its batches in step with other processes.
        self._data: tuple[Any, Iterator[Any]] = None, iter(())

    def plan(self, batch: Batch, options: Mapping[str, Any]) -> FunctionPlan:
        """Plan the step for batches of one shape."""
        if batch.key in self._running:
            shapes = ", ".join(f"{one.name} {list(one.shape)}" for one in batch.specs)
            raise LayoutError(
                f"the step {self._step!r} of model {self._owner.model.name!r} runs by a plan for "
                f"{shapes} already; plan before the first such batch, or compile the model again"
            )
        self.plans[batch.key] = self._owner.search(self._step, batch, options)
        return self.plans[batch.key]

    def __call__(self, data: Any) -> Any:
        """Run as many steps as Keras wants of one call; return what the last one does."""
        model = self._owner.model
        count = _per_call(model)
        if self._data[0] is not data:
            self._data = data, self._owner.in_step(self._step, data)
        made = [self._run(one) for _, one in zip(range(count), self._data[1], strict=False)]
        if not made:
            raise StopIteration
        return _joined(made) if self._step == "predict" else made[-1]

    def _run(self, data: Any) -> Any:
        batch = self._owner.whole(batch_of(data))
        if batch.key not in self._running:
            if batch.key not in self.plans:
                self.plan(batch, self._owner._options)
            self._running[batch.key] = self._owner.take(self.plans[batch.key])
        found = self._running[batch.key](*batch.tensors)
        keras_models.count_step(self._owner.model, self._step)
        return found


def _parts_on(mesh: Mesh, devices: Any, together: bool = True) -> ProcessParts:
    """Return the parts of processes; all of them call this at once if they feed parts."""
    own = devices_of(mesh, devices)
    rings = ProcessCollectives(own) if together and own.distributed else None
    return ProcessParts(Communicator(own, rings))


def _lifted(make: Any, **given: Any) -> Any:
    """Make a variable outside of the function that is traced, where it can."""
    value = given.get("initial_value")
    if value is not None and tf.is_symbolic_tensor(value):
        known = tf.get_static_value(value)
        if known is None:
            return make(**given)
        given = {**given, "initial_value": known, "dtype": given.get("dtype") or value.dtype}
    with tf.init_scope():
        return resource_variable_ops.ResourceVariable(
            **{name: given[name] for name in _OF_VARIABLES if name in given}
        )


def _joined(outputs: Sequence[Any]) -> Any:
    """Concatenate the outputs of several prediction steps."""
    if len(outputs) == 1:
        return outputs[0]
    return nest.map_structure(lambda *some: tf.concat(some, 0), *outputs)


def _per_call(model: Any) -> int:
    """Return how many steps Keras wants of one call."""
    given = keras_models.steps_per_call(model)
    return int(given) if given is not None else 1


def _listed(some: Any) -> list[Any]:
    """Return a list of variables, from a sequence or from a method that returns one."""
    return list(some() if callable(some) else some or ())
