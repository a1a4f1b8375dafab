# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layouts in which variables lie already, as strategies for a plan that is to share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse.layout.errors import raise_if
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.optimize.graph import GraphProblem
from tf_fuse.layout.tensor_layout import TensorLayout

Pinned = Mapping[str, str | Sequence[str]]


def layouts_of(variables: Mapping[str, Any]) -> dict[str, TensorLayout]:
    """The layouts of those variables that lie in parts.

    Args:
      variables: of TensorFlow, by their names.
    """
    # Not at the top: planning does without what runs plans.
    from tf_fuse.layout.execution.variables import parts_of

    found = {name: parts_of(one) for name, one in variables.items()}
    return {name: parts.layout for name, parts in found.items() if parts is not None}


def pins_of_kept(
    graph: GraphProblem, kept: Mapping[str, TensorLayout], mesh: Mesh, given: Pinned
) -> dict[str, tuple[str, ...]]:
    """The strategies that leave variables where they are.

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
