# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras's `fit`, `evaluate` and `predict`, run by plans.

Keras asks a model to make the functions that run a step over an iterator (`make_train_function` and
its like), and keeps them until the model is compiled again. Here they are others: a batch's step,
with the optimizer's and the metrics' updates, is planned when a batch of its shape comes first,
and is executed by that plan from then on. Variables lie as the first plan says; others keep that.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.util import nest

from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.execution import variables
from tf_fuse.layout.execution.execution import Execution
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.optimize import modes
from tf_fuse.layout.optimize.problem import DATA
from tf_fuse.layout.pins import annotations_of, variable_name
from tf_fuse.layout.planning import FunctionPlan, FunctionProblem, function_problem
from tf_fuse.layout.rules import LayoutRules

STEPS: Final = ("train", "test", "predict")
# What `function_problem` and `FunctionProblem.search` take, and a model's plans too.
_OF_PROBLEM: Final = ("allowed", "links", "memory_limit_bytes", "rates", "steps")
_OTHERS: Final = ("batch",)
_OF_SEARCH: Final = ("dimensions", "limits", "mode", "pins", "renamed", "rules")
_OF_VARIABLES: Final = (
    "aggregation", "constraint", "dtype", "initial_value", "name", "shape", "synchronization",
    "trainable",
)  # fmt: skip
_PARTS: Final = ("x", "y", "sample_weight")


class Batch(NamedTuple):
    """What a step is given, taken apart.

    Attributes:
      structure: with None for each tensor, and for what is left out.
      places: which of the structure's leaves the tensors are.
      tensors: or their `tf.TensorSpec`s.
      specs: of the tensors, with names.
    """

    structure: Any
    places: tuple[int, ...]
    tensors: tuple[Any, ...]
    specs: tuple[tf.TensorSpec, ...]

    @property
    def key(self) -> str:
        """Batches of one key run by one plan."""
        return f"{self.structure} {self.places} {self.specs}"

    @property
    def size(self) -> int | None:
        """Examples; None where nothing has a dimension."""
        return next((one.shape[0] for one in self.specs if one.shape.rank), None)

    def packed(self, tensors: Sequence[Any]) -> Any:
        """Tensors in the batch's structure."""
        leaves = nest.flatten(self.structure)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return nest.pack_sequence_as(self.structure, leaves)


class KerasExecution:
    """A Keras model whose steps run by plans, until it is released.

    Attributes:
      model: that is run.
      mesh: the devices.
    """

    def __init__(self, model: Any, mesh: Mesh, devices: Any, options: Mapping[str, Any]):
        """Takes the place of the functions that Keras makes for its loops.

        Args:
          model: of Keras 3 on TensorFlow, or of tf_keras.
          mesh: the devices.
          devices: as of `tf_fuse.layout.execute`.
          options: as of `tf_fuse.layout.plan`, for the plans of all steps.

        Raises:
          LayoutError: the model is none, or runs by plans already; or an option is unknown.
        """
        _check(model, options)
        self.model = model
        self.mesh = mesh
        self._devices = devices
        self._options = dict(options)
        self._optimizer = getattr(model, "optimizer", None)
        # Of the batch that was planned first.
        self._size: int | None = None
        self._names: set[str] = set()
        self._taken: dict[int, Any] = {}
        self._released = False
        for step in STEPS:
            setattr(model, f"{step}_function", None)
            setattr(model, f"make_{step}_function", functools.partial(self._make, step))

    @property
    def plans(self) -> dict[str, tuple[FunctionPlan, ...]]:
        """The plans of each step that has some, the first one first."""
        made = {step: getattr(self.model, f"{step}_function", None) for step in STEPS}
        return {
            step: tuple(one.plans.values())
            for step, one in made.items()
            if isinstance(one, _Step) and one.plans
        }

    def plan(self, step: str, data: Any, **options: Any) -> FunctionPlan:
        """Plans a step for batches of a shape, which run by this plan then.

        Args:
          step: "train", "test" or "predict".
          data: a batch as Keras has it, x, (x, y) or (x, y, sample_weight); of tensors, arrays or
            `tf.TensorSpec`s.
          **options: in place of the model's own; and pins.

        Raises:
          LayoutError: as of `tf_fuse.layout.plan`; such batches run already.
        """
        if step not in STEPS:
            raise LayoutError(f"a step is one of {', '.join(STEPS)}, got {step!r}")
        _check_options(options)
        if self._released:
            raise LayoutError(
                f"model {self.model.name!r} was released; call layout.lay_out again to plan for it"
            )
        made: _Step = self._make(step)
        return made.plan(batch_of(data), {**self._options, **options})

    def release(self) -> None:
        """Gives the model its own functions back, and its variables their values.

        In several processes, all have to do so at once. Once it is released there is nothing to do.
        """
        if self._released:
            return
        self._released = True
        for step in STEPS:
            setattr(self.model, f"{step}_function", None)
            delattr(self.model, f"make_{step}_function")
        for one in self._taken.values():
            variables.release(one)
        self._taken.clear()

    def problem(
        self, step: str, batch: Batch, options: Mapping[str, Any], whole: bool = False
    ) -> FunctionProblem:
        """What there is to choose for a step; `whole` is for batches that are not split."""
        own = getattr(self.model, f"{step}_step")

        def function(*tensors: Any) -> Any:
            # An optimizer and metrics make their variables in their first step.
            with tf.variable_creator_scope(_lifted):
                return own(batch.packed(tensors))

        function.__name__ = f"{self.model.name}_{step}_step"
        given = {name: options[name] for name in _OF_PROBLEM if name in options}
        found = function_problem(function, self.mesh, batch.specs, **given)
        away = set(_PARTS) | {one.name for one in batch.specs} | self._names
        away -= set(found.function.inputs)
        split = {n: at for n, at in (options.get("batch") or {}).items() if n not in away}
        if whole:
            split |= dict.fromkeys(found.function.inputs)
        if not split:
            return found
        return function_problem(function, self.mesh, batch.specs, batch=split, **given)

    def search(self, step: str, batch: Batch, options: Mapping[str, Any]) -> FunctionPlan:
        """The plan of a step; variables keep the layouts that they have."""
        problem = self.problem(step, batch, options)
        given = {name: options[name] for name in _OF_SEARCH if name in options}
        self._leave_out(step, given, problem)
        try:
            found = problem.search(**given, keep_layouts=True)
        except LayoutError:
            # A last batch: what has been planned before was not wrong but for its size.
            if self._size is None or batch.size == self._size:
                raise
            found = self._otherwise(step, batch, options, problem)
        if self._size is None:
            self._size = batch.size
        self._names |= set(problem.function.tensors)
        return found

    def take(self, plan: FunctionPlan) -> Execution:
        """Executes a plan."""
        found = Execution(plan, self._devices)
        self._taken |= {id(one): one for one in found.variables.values()}
        return found

    def _otherwise(
        self, step: str, batch: Batch, options: Mapping[str, Any], problem: FunctionProblem
    ) -> FunctionPlan:
        """The plan of a batch that cannot be split as is asked for."""
        given: dict[str, Any] = {"limits": options.get("limits"), "keep_layouts": True}
        if options.get("mode") == DATA:
            return self.problem(step, batch, options, whole=True).search(DATA, **given)
        return problem.search(modes.AUTO, **given)

    def _leave_out(self, step: str, given: dict[str, Any], problem: FunctionProblem) -> None:
        """Names that another step has, and this one does without."""
        there = set(problem.function.tensors)
        elsewhere = self._names | set(_PARTS)
        optimizer = getattr(self.model, "optimizer", None)
        known = [*self.model.variables, *_listed(getattr(optimizer, "variables", ()))]
        elsewhere |= {variable_name(one) for one in known} if step != "train" else set()
        away = elsewhere - there
        if given.get("renamed"):
            given["renamed"] = [one for one in given["renamed"] if one not in away]
        if given.get("dimensions"):
            names = annotations_of(given["dimensions"])
            left = {name: one for name, one in names.items() if name not in away}
            given["dimensions"] = left
            if given.get("rules") is not None and left != names:
                given["rules"] = _without(given["rules"], names, left)

    def _make(self, step: str, force: bool = False) -> Any:
        """What Keras's loops run; anew where the model was compiled since."""
        made = getattr(self.model, f"{step}_function", None)
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
        setattr(self.model, f"{step}_function", made)
        return made

    def _forget(self, optimizer: Any) -> None:
        """Releases the variables of an optimizer that the model has no more."""
        for one in _listed(getattr(optimizer, "variables", ())):
            inner = getattr(one, "value", one) if not isinstance(one, tf.Variable) else one
            if self._taken.pop(id(inner), None) is not None:
                variables.release(inner)


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

    def plan(self, batch: Batch, options: Mapping[str, Any]) -> FunctionPlan:
        """Plans batches of a shape."""
        if batch.key in self._running:
            shapes = ", ".join(f"{one.name} {list(one.shape)}" for one in batch.specs)
            raise LayoutError(
                f"the step {self._step!r} of model {self._owner.model.name!r} runs by a plan for "
                f"{shapes} already; plan before the first such batch, or compile the model again"
            )
        self.plans[batch.key] = self._owner.search(self._step, batch, options)
        return self.plans[batch.key]

    def __call__(self, data: Any) -> Any:
        """Runs as many steps as Keras wants of one call; returns what the last one does."""
        model = self._owner.model
        count = _per_call(model)
        made = [self._run(one) for _, one in zip(range(count), data, strict=False)]
        if not made:
            raise StopIteration
        return _joined(made) if self._step == "predict" else made[-1]

    def _run(self, data: Any) -> Any:
        batch = batch_of(data)
        if batch.key not in self._running:
            if batch.key not in self.plans:
                self.plan(batch, self._owner._options)
            self._running[batch.key] = self._owner.take(self.plans[batch.key])
        found = self._running[batch.key](*batch.tensors)
        counter = getattr(self._owner.model, f"_{self._step}_counter", None)
        if counter is not None:  # Of tf_keras, which has it in the step's graph.
            counter.assign_add(1)
        return found


def batch_of(data: Any) -> Batch:
    """A batch as Keras has it, taken apart.

    Raises:
      LayoutError: a part of it is no dense tensor.
    """
    parts = tuple(data) if isinstance(data, tuple | list) else (data,)
    if len(parts) > len(_PARTS):
        raise LayoutError(
            f"a batch is x, (x, y) or (x, y, sample_weight), got {len(parts)} parts; give several "
            "inputs of a model as one list or dictionary"
        )
    parts = tuple(nest.map_structure(_leaf, one) for one in parts)
    while len(parts) > 1 and parts[-1] is None:
        parts = parts[:-1]
    leaves = nest.flatten(parts)
    names = [
        re.sub(r"\W", "_", f"{name}_{path}" if path else name)
        for name, one in zip(_PARTS, parts, strict=False)
        for path, _ in nest.flatten_with_joined_string_paths(one)
    ]
    places = tuple(i for i, one in enumerate(leaves) if one is not None)
    return Batch(
        nest.map_structure(lambda _: None, parts),
        places,
        tuple(leaves[i] for i in places),
        tuple(tf.TensorSpec(leaves[i].shape, leaves[i].dtype, names[i]) for i in places),
    )


def _leaf(one: Any) -> Any:
    """A tensor, or None where there is nothing."""
    if one is None or isinstance(one, tf.experimental.Optional):
        return None
    if isinstance(one, tf.TensorSpec):
        return one
    if isinstance(one, tf.SparseTensor | tf.RaggedTensor):
        raise LayoutError(
            f"a batch has a {type(one).__name__}, and plans are for dense tensors of whole shapes; "
            "make it dense in the data's pipeline"
        )
    return tf.convert_to_tensor(one)


def _lifted(make: Any, **given: Any) -> Any:
    """Makes a variable outside of the function that is traced, where it can."""
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
    """What several steps of a prediction return, one behind the other."""
    if len(outputs) == 1:
        return outputs[0]
    return nest.map_structure(lambda *some: tf.concat(some, 0), *outputs)


def _per_call(model: Any) -> int:
    """Steps that Keras wants of one call."""
    given = getattr(model, "steps_per_execution", None)
    if given is None:  # Of tf_keras.
        given = getattr(model, "_steps_per_execution", None)
    return int(given) if given is not None else 1


def _without(
    rules: LayoutRules | str, names: Mapping[str, Iterable[Any]], left: Mapping[str, Iterable[Any]]
) -> LayoutRules | None:
    """Rules without those for dimensions that only tensors have that are left out."""
    rules = LayoutRules.from_text(rules) if isinstance(rules, str) else rules
    had = {one for mine in names.values() for one in mine}
    have = {one for mine in left.values() for one in mine}
    kept = [(name, axis) for name, axis in rules.rules if name in have or name not in had]
    return LayoutRules(kept) if kept or left else None


def _listed(some: Any) -> list[Any]:
    """Variables, also where they are asked for by a call."""
    return list(some() if callable(some) else some or ())


def _check(model: Any, options: Mapping[str, Any]) -> None:
    missing = [one for one in STEPS if not hasattr(model, f"make_{one}_function")]
    if missing:
        raise LayoutError(
            f"a Keras model is laid out, got {model!r}; give a keras.Model on the backend "
            "'tensorflow', or a tf_keras.Model, and a function to layout.plan"
        )
    if any(isinstance(getattr(model, f"make_{one}_function"), functools.partial) for one in STEPS):
        raise LayoutError(
            f"model {model.name!r} runs by plans already; release what layout.lay_out returned"
        )
    _check_options(options)


def _check_options(options: Mapping[str, Any]) -> None:
    known = sorted((*_OF_PROBLEM, *_OF_SEARCH, *_OTHERS))
    raise_if([
        f"there is no option {name!r} for the plans of a model; there are: {', '.join(known)}"
        for name in sorted(set(options) - set(known))
    ])  # fmt: skip
