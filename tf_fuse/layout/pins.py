# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layouts that are given, as strategies that a search may choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.operation import Tensor
from tf_fuse.layout.optimize.graph import GraphProblem
from tf_fuse.layout.optimize.problem import listed
from tf_fuse.layout.rules import Dimension, LayoutRules
from tf_fuse.layout.tensor_layout import TensorLayout

Annotation = Sequence[str | None]


def pins_of(
    graph: GraphProblem,
    rules: LayoutRules | str | None,
    dimensions: Mapping[str, Annotation],
    mesh: Mesh,
) -> dict[str, tuple[str, ...]]:
    """The strategies that leave tensors as rules for names of their dimensions lay them out.

    Args:
      graph: operations with their strategies.
      rules: for names of dimensions.
      dimensions: by name of a tensor, a name for each of its dimensions, or None.
      mesh: the devices.

    Returns:
      By name of an operation, names of strategies.

    Raises:
      LayoutError: there are rules without names or names without rules; a tensor is unknown, or has
        another number of dimensions; a rule is for a name that no tensor has, or for no axis; a
        size is no multiple of the number of devices; no strategy makes a tensor so. All that are
        found are named.
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
    for name in sorted(dimensions):
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
