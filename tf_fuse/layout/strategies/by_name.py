# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Choose strategies by rules for named dimensions, as Mesh-TensorFlow lays out a model."""

from __future__ import annotations

from collections.abc import Iterator

from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.strategies.name_propagation import NamedTensors
from tf_fuse.layout.strategies.strategy import (
    SPLIT,
    Choice,
    Strategy,
    strategies,
)
from tf_fuse.layout.types.dimension_rules import LayoutRules
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, unknown_axes
from tf_fuse.layout.types.operation import Operation


def named_strategy(
    operation: Operation,
    names: NamedTensors,
    rules: LayoutRules,
    mesh: Mesh,
) -> Strategy:
    """Return the strategy in which each axis splits the dimension that a rule names.

    Where an operation cannot split a dimension, all devices along the axis do the same.

    Args:
      operation: of the graph whose names they are.
      names: of the dimensions of its tensors.
      rules: for the names.
      mesh: the devices.

    Raises:
      LayoutError: two ranges of the operation are on one axis, a size is not a multiple of the
        number of devices, an axis is not in the mesh, or the operation has no such strategy.
    """
    rule = rule_of(operation)
    problems = [
        problem
        for name, axis in rules.rules
        for problem in unknown_axes([axis], mesh, f"rule {name}:{axis}: ")
    ]
    by_axis: dict[str, dict[str, str]] = {}
    for factor, name in dict.fromkeys(_factors(operation, names)):
        over = rules.axis_of(name)
        if over in mesh.axes and factor in rule.splittable:
            by_axis.setdefault(str(over), {})[factor] = name
    sizes = dict(rule.sizes)
    choices = []
    for axis, count in mesh.dims:
        factors = by_axis.get(axis, {})
        if len(set(factors.values())) > 1:
            problems.append(
                f"{operation} has the dimensions {', '.join(map(repr, sorted(factors.values())))}, "
                f"which are all on axis {axis!r}; keep the rule of one of them, or rename a tensor"
            )
        for factor, name in sorted(factors.items()):
            if sizes[factor] % count:
                problems.append(
                    f"{operation}: dimension {name!r} has {sizes[factor]} elements, which is not a "
                    f"multiple of the {count} devices of axis {axis!r}; pad it to "
                    f"{-(-sizes[factor] // count) * count}, or leave out the rule {name}:{axis}"
                )
        # Two ranges of one name, as the queries and keys of a sequence: the first one is split.
        first = next((one for one, _ in rule.sizes if one in factors), None)
        choices.append(Choice() if first is None or count == 1 else Choice(SPLIT, first))
    raise_if(problems)
    # Height and width of images are split only where neighbours have all rows that are needed.
    space = {factor for halo in rule.halos for factor in halo.factors}
    whole = [Choice() if one.factor in space else one for one in choices]
    by_choices = {one.choices: one for one in strategies(operation, mesh)}
    for wanted in (tuple(choices), tuple(whole)):
        if wanted in by_choices:
            return by_choices[wanted]
    words = ", ".join(map(str, choices))
    raise LayoutError(f"{operation} has no strategy ({words}) on mesh {str(mesh)!r}")


def _factors(operation: Operation, names: NamedTensors) -> Iterator[tuple[str, str]]:
    """Return the factors of an operation that have a name, in its order, with the name."""
    rule = rule_of(operation)
    for tensors, all_dims, known in (
        (operation.inputs, rule.inputs, names.read),
        (operation.outputs, rule.outputs, names.made),
    ):
        for tensor, dims in zip(tensors, all_dims, strict=True):
            for factors, name in zip(dims, known[tensor.name], strict=True):
                if len(factors) == 1 and name is not None:
                    yield factors[0], name
