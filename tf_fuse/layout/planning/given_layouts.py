# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turn layouts that are given for inputs and variables into sharding constraints of a search.

Keys are names, regular expressions for whole names, references to variables, or Keras layers. A
`keras.distribution.LayoutMap` has the first two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tf_fuse.layout.optimize.graph_problem import GraphProblem
from tf_fuse.layout.optimize.problem import listed
from tf_fuse.layout.planning.sharding_constraints import by_name
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.specs import Given, layout_from
from tf_fuse.layout.types.tensor_layout import TensorLayout, without_single_axes

if TYPE_CHECKING:
    from tf_fuse.layout.trace.function import TracedFunction

# By a name, an expression, a `tf.Variable`'s `ref()`, or a Keras layer with its variables' names.
Layouts = Mapping[Any, Given | Mapping[str, Given]]


def layouts_by_key(layouts: Layouts | None, mesh: Mesh) -> dict[str, Given]:
    """Return specs or placements by names and expressions.

    Raises:
      LayoutError: a layer has no variable of a name, a key is there twice, or a `LayoutMap` is for
        another mesh.
    """
    if layouts is None:
        return {}
    if not isinstance(layouts, Mapping):
        raise LayoutError(
            f"layouts: give a mapping from names to layouts, or a LayoutMap, got {layouts!r}"
        )
    _check_device_mesh(layouts, mesh)
    found: dict[str, Given] = {}
    problems: list[str] = []
    for key in layouts:
        try:
            several = dict(by_name(key, layouts[key], "layouts"))
        except LayoutError as error:
            problems += error.problems
            continue
        problems += [f"layouts: {one!r} has two layouts" for one in set(several) & set(found)]
        found |= several
    raise_if(problems)
    return found


def _check_device_mesh(layouts: Any, mesh: Mesh) -> None:
    theirs = getattr(layouts, "device_mesh", None)
    if theirs is None:
        return
    dims = tuple(zip(theirs.axis_names, map(int, theirs.shape), strict=True))
    if dims != mesh.dims:
        raise LayoutError(
            f"layouts: the LayoutMap is for a mesh of shape {tuple(theirs.shape)} with axes "
            f"{tuple(theirs.axis_names)}, and the plan is for {str(mesh)!r}; give both the same"
        )


def matches(key: str, names: Iterable[str]) -> list[str]:
    """Return the names that a key is for: that very name, or all that the expression matches.

    Raises:
      LayoutError: the key is neither a name nor an expression.
    """
    names = list(names)
    if key in names:
        return [key]
    try:
        return [one for one in names if re.fullmatch(key, one)]
    except re.error as error:
        raise LayoutError(
            f"layouts: {key!r} is not a name, nor a regular expression ({error}); there are: "
            f"{listed(sorted(names))}"
        ) from None


def layout_constraints(
    graph: GraphProblem, function: TracedFunction, layouts: Layouts | None, mesh: Mesh
) -> dict[str, tuple[str, ...]]:
    """Return the strategies that make tensors in the given layouts.

    Args:
      graph: operations with their strategies.
      function: what was traced.
      layouts: as of `tf_fuse.layout.plan`.
      mesh: the devices.

    Returns:
      By name of an operation, names of strategies.

    Raises:
      LayoutError: a key is for no tensor, a tensor has two keys, a layout does not fit, or no
        strategy makes it. The error names all that were found.
    """
    given = layouts_by_key(layouts, mesh)
    if not given:
        return {}
    makers = {
        tensor.name: (number, o, tensor)
        for number, one in enumerate(graph.operations)
        for o, tensor in enumerate(one.outputs)
    }
    problems: list[str] = []
    wanted: dict[str, TensorLayout] = {}
    keys: dict[str, str] = {}
    for key, layout in given.items():
        names = [key] if key in makers else _matches(key, function, problems)
        for name in names:
            exact = name in given
            if exact and key != name:
                continue  # As of a LayoutMap, the very name goes first.
            if name in keys:
                problems.append(
                    f"layouts: {name!r} matches {keys[name]!r} and {key!r}; keep one of them, or "
                    "give its very name"
                )
                continue
            keys[name] = key
            try:
                found = layout_from(mesh, makers[name][2].shape, layout)
                wanted[name] = without_single_axes(found)
            except LayoutError as error:
                problems += [f"layouts: {name!r}: {one}" for one in error.problems]
    found_strategies: dict[str, set[str]] = {}
    for name, layout in wanted.items():
        number, o, _ = makers[name]
        operation = graph.operations[number]
        mine = {str(one) for one in graph.strategies[number] if one.outputs[o] == layout}
        mine &= found_strategies.get(operation.name, mine)
        if not mine:
            problems.append(
                f"layouts: {operation} has no strategy that makes {name!r} as {layout}; give the "
                "axes of a dimension in the mesh's order, and allow strategies that split it so"
            )
        found_strategies[operation.name] = mine
    raise_if(problems)
    return {name: tuple(sorted(mine)) for name, mine in sorted(found_strategies.items())}


def _matches(key: str, function: TracedFunction, problems: list[str]) -> list[str]:
    names = [*function.inputs, *function.variables]
    try:
        found = matches(key, names)
    except LayoutError as error:
        problems += error.problems
        return []
    if not found:
        problems.append(
            f"layouts: no tensor or variable is named {key!r}, nor matches it; inputs and "
            f"variables are: {listed(sorted(names))}"
        )
    return found
