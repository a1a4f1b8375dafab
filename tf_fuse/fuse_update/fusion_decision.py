# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the record of what the pass did to one function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import UnfusedAssignment
from tf_fuse.fuse_update.outline import Outline

# A single assignment is one operation already.
SINGLE = "too_few"


@dataclass(frozen=True)
class FusionDecision:
    """What the pass did to one function.

    Attributes:
      function: its name.
      outline: the fused clusters, and the assignments that stay with the reasons.
      view: of the function.
      has_servers: whether its variables may be on other tasks.
      variables: names of variables in the program, by argument, as far as they are known.
    """

    function: str
    outline: Outline
    view: GraphView
    has_servers: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def assignments_left(self) -> list[UnfusedAssignment]:
        """Return the unfused assignments, except those that are one operation already."""
        return [left for left in self.outline.left if left.reason != SINGLE]
