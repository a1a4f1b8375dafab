# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the record of one fused operation, and the interface of encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster, Rules
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite


@dataclass(frozen=True)
class FusedOperation:
    """The operation that replaces a fusion cluster.

    Attributes:
      node: with all attributes and data inputs, but without a name and control inputs.
      results: tensors of the cluster that other nodes read, in the order of the node's outputs.
      output: name of its list of outputs.
      body: the function that it calls, or None.
      constants: nodes that it reads; their names are unique within the operation only.
      is_exact: whether it computes the same bits as the cluster.
    """

    node: Any
    results: list[str]
    output: str
    body: Any | None = None
    constants: list[Any] = field(default_factory=list)
    is_exact: bool = True


class Encoder(Protocol):
    """Encodes clusters as one kind of operation."""

    @property
    def rules(self) -> Rules:
        """What a cluster may contain."""

    def encode(
        self,
        view: GraphView,
        cluster: FusionCluster,
        shapes: Mapping[str, Shape | None],
        site: CallSite,
    ) -> FusedOperation | str:
        """Return the operation, or a key of `outline.REASONS` if there is none."""
