# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turn the existing layouts of variables into sharding constraints of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse.layout.optimize.graph_problem import GraphProblem
from tf_fuse.layout.types.errors import raise_if
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.tensor_layout import TensorLayout

ShardingConstraints = Mapping[str, str | Sequence[str]]


def existing_layouts(variables: Mapping[str, Any]) -> dict[str, TensorLayout]:
    """Return the layouts of those variables that lie in shards.

    Args:
      variables: of TensorFlow, by their names.
    """
    # Not imported at the top: planning does not need execution.
    from tf_fuse.layout.execution.variables.variable import local_shards_of

    found = {name: local_shards_of(one) for name, one in variables.items()}
    return {name: shards.layout for name, shards in found.items() if shards is not None}


def existing_layout_constraints(
    graph: GraphProblem, kept: Mapping[str, TensorLayout], mesh: Mesh, given: ShardingConstraints
) -> dict[str, tuple[str, ...]]:
    """Return the strategies that leave variables in their existing layouts.

    Args:
      graph: operations with their strategies.
      kept: by name of a variable, its layout.
      mesh: that is planned for.
      given: strategies that are asked for already, by names of operations.

    Raises:
      LayoutError: a variable is on another mesh, or is asked for in another layout.
    """
    found = {}
    problems = []
    for operation, strategies in zip(graph.operations, graph.strategies, strict=True):
        layout = None if operation.inputs else kept.get(operation.outputs[0].name)
        if layout is None:
            continue
        name = operation.outputs[0].name
        if layout.mesh != mesh:
            problems.append(
                f"variable {name!r} lies on mesh {str(layout.mesh)!r}, and the plan is for "
                f"{str(mesh)!r}; plan for the first one, or release the variable before"
            )
            continue
        wanted = given.get(operation.name)
        asked = {wanted} if isinstance(wanted, str) else wanted
        fitting = [str(one) for one in strategies if one.outputs[0] == layout]
        left = tuple(one for one in fitting if asked is None or one in asked)
        if not left:
            asked_for = (
                f"as one of {', '.join(sorted(asked))}" if asked and fitting else "otherwise"
            )
            problems.append(
                f"variable {name!r} lies as {layout} already, and is asked for {asked_for}; leave "
                "it out of what is asked for, or release it first"
            )
        found[operation.name] = left
    raise_if(problems)
    return found
