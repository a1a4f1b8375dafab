# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turn rules for named dimensions into sharding constraints of a search.

Names of dimensions are given to a few tensors, variables or Keras layers, and rules say over which
axes named dimensions are split. `rule_constraints` constrains what has names;
`propagated` lets names go through the graph, and constrains all that they reach.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.layout.optimize.graph_problem import GraphProblem
from tf_fuse.layout.optimize.problem import listed
from tf_fuse.layout.strategies.name_propagation import NamedTensors, propagate
from tf_fuse.layout.trace.variable_name import variable_name
from tf_fuse.layout.types.dimension_rules import Dimension, LayoutRules
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, problem_of_names
from tf_fuse.layout.types.operation import Tensor
from tf_fuse.layout.types.tensor_layout import TensorLayout

Annotation = Sequence[str | None]
# By a tensor's or variable's name or a `tf.Variable`'s `ref()`; or by a Keras layer, with the names
# of its variables.
Dimensions = Mapping[Any, Annotation | Mapping[str, Annotation]]


def annotations_of(dimensions: Dimensions) -> dict[str, Annotation]:
    """Return annotations by names of tensors.

    Raises:
      LayoutError: a layer has no variable of a name, or is given no mapping; a tensor has two
        annotations, or one that is text.
    """
    found: dict[str, Annotation] = {}
    problems: list[str] = []
    for key, names in dimensions.items():
        try:
            several = dict(by_name(key, names, "dimensions"))
        except LayoutError as error:
            problems += error.problems
            continue
        problems += [
            f"dimensions: {one!r} has names twice" for one in sorted(set(several) & set(found))
        ]
        texts = (problem_of_names(f"dimensions of {one!r}", several[one]) for one in several)
        problems += [one for one in texts if one]
        found |= several
    raise_if(problems)
    return found


def by_name(key: Any, given: Any, what: str) -> Iterator[tuple[str, Any]]:
    """Return what is given for a name, a reference to a variable, or the variables of a layer.

    Raises:
      LayoutError: the key is of another kind, or a layer has no variable of a name.
    """
    if hasattr(key, "deref"):  # A reference to a tf.Variable, which cannot be hashed.
        key = key.deref()
    if isinstance(key, str):
        yield key, given
    elif hasattr(key, "variables"):
        yield from _of_layer(key, given, what)
    elif hasattr(key, "shape"):
        yield variable_name(key), given
    else:
        raise LayoutError(
            f"{what}: {key!r} is not a name, reference to a variable or Keras layer; give "
            "one of these"
        )


def _of_layer(layer: Any, given: Any, what: str) -> Iterator[tuple[str, Any]]:
    variables = {_own_name(one): one for one in layer.variables}
    have = ", ".join(sorted(variables)) or "none; build it first"
    if not isinstance(given, Mapping):
        raise LayoutError(
            f"{what}: layer {layer.name!r} has several variables: give a mapping from their "
            f"names, which are: {have}"
        )
    raise_if([
        f"{what}: layer {layer.name!r} has no variable {one!r}; it has: {have}"
        for one in sorted(set(given) - set(variables))
    ])  # fmt: skip
    for one, mine in given.items():
        yield variable_name(variables[one]), mine


def _own_name(variable: Any) -> str:
    return variable_name(variable).rpartition("/")[2]


def propagated(
    graph: GraphProblem,
    rules: LayoutRules | str,
    dimensions: Mapping[str, Annotation],
    mesh: Mesh,
    renamed: Iterable[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Return the strategies in which all tensors that names reach lie as the rules say.

    Names go from the annotated tensors to all that have the same ranges
    (`strategies/name_propagation.py`). Of an operation, those strategies are left whose inputs and
    outputs agree with them; where there is none, as of an operation that cannot split a dimension,
    those whose outputs do; and else all.

    Args:
      graph: operations with their strategies.
      rules: for names of dimensions.
      dimensions: by name of a tensor, a name for each of its dimensions, or None.
      mesh: the devices.
      renamed: tensors at which names end; see `propagate`.

    Returns:
      By name of an operation, names of strategies, where not all are left.

    Raises:
      LayoutError: two names meet, one comes twice to a tensor, or has two sizes: with the paths of
        both; or as of `propagate` and `LayoutRules.layout`.
    """
    if isinstance(rules, str):
        rules = LayoutRules.from_text(rules)
    names = propagate(graph.operations, dimensions, renamed)
    raise_if(_uneven(names, rules, mesh))
    found: dict[str, tuple[str, ...]] = {}
    for operation, strategies in zip(graph.operations, graph.strategies, strict=True):
        inputs = [_wanted(names.read[one.name], rules, mesh) for one in operation.inputs]
        outputs = [_wanted(names.made[one.name], rules, mesh) for one in operation.outputs]
        fitting = [one for one in strategies if _agree(one.outputs, outputs)]
        both = [one for one in fitting if _agree(one.inputs, inputs)]
        left = both or fitting
        if left and len(left) < len(strategies):
            found[operation.name] = tuple(map(str, left))
    return found


def _uneven(names: NamedTensors, rules: LayoutRules, mesh: Mesh) -> list[str]:
    """Return what is wrong with the layouts that rules give to named tensors; each once."""
    listed_once: dict[str, str] = {}
    for tensor in names.shapes:
        for read in (False, True):
            try:
                names.layout(tensor, rules, mesh, read)
            except LayoutError as error:
                for one in error.problems:
                    listed_once.setdefault(one, f"tensor {tensor!r}: {one}")
    return list(listed_once.values())


def _wanted(
    names: Sequence[str | None], rules: LayoutRules, mesh: Mesh
) -> list[tuple[str, ...] | None]:
    """Return, for each dimension, the axes that split it; None where no name says."""
    axes = [None if name is None else rules.axis_of(name) for name in names]
    return [
        None if name is None else (axis,) if axis is not None and mesh.size_of(axis) > 1 else ()
        for name, axis in zip(names, axes, strict=True)
    ]


def _agree(
    layouts: Sequence[TensorLayout], wanted: Sequence[Sequence[tuple[str, ...] | None]]
) -> bool:
    return all(
        axes is None or axes == split
        for layout, mine in zip(layouts, wanted, strict=True)
        for split, axes in zip(layout.splits, mine, strict=True)
    )


def rule_constraints(
    graph: GraphProblem,
    rules: LayoutRules | str | None,
    dimensions: Mapping[str, Annotation],
    mesh: Mesh,
    renamed: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Return the strategies in which named tensors lie as the rules say.

    Args:
      graph: operations with their strategies.
      rules: for names of dimensions.
      dimensions: by name of a tensor, a name for each of its dimensions, or None.
      mesh: the devices.
      renamed: tensors whose names are for their readers, and constrain nothing.

    Returns:
      By name of an operation, names of strategies.

    Raises:
      LayoutError: there are rules without names or names without rules; a tensor is unknown, or has
        another number of dimensions; a rule is for a name that no tensor has, or for no axis; a
        size is not a multiple of the number of devices; no strategy gives such a layout. The error
        names all that were found.
    """
    if rules is None and not dimensions:
        return {}
    if rules is None:
        raise LayoutError("dimensions have names, but there are no rules for them; give rules")
    if isinstance(rules, str):
        rules = LayoutRules.from_text(rules)
    makers = {
        tensor.name: (number, o)
        for number, one in enumerate(graph.operations)
        for o, tensor in enumerate(one.outputs)
    }
    tensors = {name: graph.operations[number].outputs[o] for name, (number, o) in makers.items()}
    raise_if(_problems(rules, dimensions, tensors))
    found: dict[str, set[str]] = {}
    problems = []
    for name in sorted(set(dimensions) - set(renamed)):
        number, o = makers[name]
        wanted = _layout(tensors[name], dimensions[name], rules, mesh)
        mine = {str(one) for one in graph.strategies[number] if one.outputs[o] == wanted}
        operation = graph.operations[number]
        mine &= found.get(operation.name, mine)
        if not mine:
            problems.append(
                f"{operation} has no strategy that makes {name!r} as {wanted}, which the rules "
                "say; leave it out of dimensions, and name what it is made of"
            )
        found[operation.name] = mine
    raise_if(problems)
    return {name: tuple(sorted(mine)) for name, mine in sorted(found.items())}


def _layout(tensor: Tensor, names: Annotation, rules: LayoutRules, mesh: Mesh) -> TensorLayout:
    dims = [
        Dimension(name, size)
        for name, size in zip(names, tensor.shape, strict=True)
        if name is not None
    ]
    try:
        checked = iter(rules.layout(dims, mesh).splits)
    except LayoutError as error:
        raise LayoutError([f"tensor {tensor.name!r}: {one}" for one in error.problems]) from None
    return TensorLayout(mesh, tensor.shape, [() if one is None else next(checked) for one in names])


def _problems(
    rules: LayoutRules, dimensions: Mapping[str, Annotation], tensors: Mapping[str, Tensor]
) -> list[str]:
    named = sorted({one for names in dimensions.values() for one in names if one is not None})
    found = [
        f"dimensions: no tensor or variable is named {name!r}; there are: {listed(sorted(tensors))}"
        for name in sorted(set(dimensions) - set(tensors))
    ]
    found += [
        f"dimensions: tensor {name!r} has {len(tensors[name].shape)} dimensions "
        f"{list(tensors[name].shape)}, and {len(names)} names; give a name for each, or None"
        for name, names in sorted(dimensions.items())
        if name in tensors and len(names) != len(tensors[name].shape)
    ]
    found += [
        f"rule {name}:{axis} is for a dimension that no tensor in dimensions has; they have: "
        f"{listed(named)}"
        for name, axis in rules.rules
        if name not in named
    ]
    return found
