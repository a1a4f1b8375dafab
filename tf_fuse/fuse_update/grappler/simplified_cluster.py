# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the record of a fusion cluster as Grappler leaves it, or as it was traced."""

from __future__ import annotations

from dataclasses import dataclass

from tf_fuse.function_graph.view import GraphView


@dataclass(frozen=True)
class SimplifiedCluster:
    """A cluster as a function of its own.

    Attributes:
      view: of the function.
      nodes: names of its nodes, in topological order.
      inputs: the tensor of each argument that is not a variable.
      variables: the resource of each argument that is a variable.
      results: its tensors that other nodes read.
      outer_results: the same tensors in the function that contains the cluster.
    """

    view: GraphView
    nodes: list[str]
    inputs: dict[str, str]
    variables: dict[str, str]
    results: list[str]
    outer_results: list[str]
