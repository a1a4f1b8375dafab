# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the plan of sharded updates: immutable verdicts of the analysis for all other phases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import BOOL, FLOAT
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView
from tf_fuse.shard_update.cost_figures import Profit
from tf_fuse.sharded_variable.shard_spec import ShardSpec

# Beginning of the names of nodes and arguments that the rewrite adds.
SCOPE = "tf_fuse_shard"

# Why a gradient's update is left unchanged.
REASONS = {
    "not_all_replicas": "the all-reduce is of a part of the replicas",
    "waits_for_weight": "the update waits for the new weight of another gradient of the bucket",
    "read_whole": "the reduced bucket is read as a whole",
    "unknown_shape": "the shape of a tensor is not known when the function is traced",
    "no_update": "no variable is updated from it, as from a loss or a metric",
    "not_elementwise": "an operation that is not elementwise reads a tensor of the update",
    "not_exact": "a sum, or a product of single numbers, would be taken in another order",
    "not_replicated": "the update reads a tensor that may differ from replica to replica",
    "one_replica": "something outside of the replicas uses a variable of one of them",
    "other_type": "the weight has another type than the gradients that are reduced",
    "returned": "the function returns a tensor of the update",
    "read_after_update": "the weight is read whole between two assignments of the update",
    "assigned_twice": "something else assigns the variable, during the update or after it",
    "several_weights": "the gradient alone changes more than one weight",
    "shared": "the update of another gradient reads or makes a tensor of this one",
    "escapes": "an operation other than reads and assignments gets the variable",
    "nested": "the all-reduce is in a function that is called, and whose graph is not known",
    "in_branch": "a branch has a part of the update, or the updates of several all-reduces",
    "cycle": "parts of the function would wait for one another",
    "no_profit": "the step would take longer by an estimate",
}

# Why a weight is gathered at the end of the step.
GATHER_REASONS = {
    "assigned_elsewhere": "something else than the update assigns the weight",
    "cycle": "parts of the function would wait for one another",
    "escapes": "an operation other than reads and assignments gets the weight",
    "in_branch": "the update is in a branch of a conditional",
    "in_groups": "the replicas are in groups that each keep everything",
    "not_read": "nothing reads the weight in front of its update",
    "read_after_update": "the weight is read whole after its update",
    "read_in_function": "a function that is called, a branch or a loop gets the weight",
    "returned": "the function returns the weight",
    "used_outside": "others than the function that updates the weight use it in the step",
}


@dataclass(frozen=True)
class Reduction:
    """A node that reduces a tensor over some or all axes.

    Attributes:
      node: its name.
      op: its operation.
      axes: that it reduces, none below 0.
      shape: of its input.
      result: shape of its output.
      dtype: number of the type of both.
      exact: whether it has the same bits when shards are reduced first.
    """

    node: str
    op: str
    axes: tuple[int, ...]
    shape: Shape
    result: Shape
    dtype: int
    exact: bool

    @property
    def is_full(self) -> bool:
        """Whether it reduces all axes."""
        return len(self.axes) == len(self.shape)

    @property
    def keeps_dims(self) -> bool:
        """Whether the axes that it reduces stay, with one element."""
        return len(self.result) == len(self.shape) and bool(self.axes)

    @property
    def is_sum(self) -> bool:
        """Whether the replicas' results, or what they send, are summed."""
        return self.op not in ("Max", "Min", "Prod")

    @property
    def wire_type(self) -> int:
        """Number of the type that replicas exchange."""
        return FLOAT if self.dtype == BOOL else self.dtype


@dataclass(frozen=True)
class Gather:
    """Where and in which type replicas gather a new weight (section 4.2 of Xu et al., 2020).

    Attributes:
      reads: nodes that read the weight in front of the update, and get the gathered tensor instead;
        None if the weight is gathered at the end of the step.
      dtype: number of the type that travels in place of the weight's own; 0 for the weight's own.
      reason: why at the end and not at the first use, a key of `GATHER_REASONS`; "" if nobody asked
        for the first use, or it is granted.
      detail: the node or variable that is the reason.
      wide: the node that needs the weight's own type; "" if none does, or nobody asked for a narrow
        one.
      aliases: identities that hand the gathered tensor on, and change type with it.
      readers: the other nodes that read the gathered tensor.
    """

    reads: tuple[str, ...] | None = None
    dtype: int = 0
    reason: str = ""
    detail: str = ""
    wide: str = ""
    aliases: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether it is gathered right before its first use."""
        return self.reads is not None


@dataclass(frozen=True)
class UpdateCluster:
    """The part of a function that updates variables from one gradient, and the verdict about it.

    Attributes:
      root: the gradient, a part of the reduced bucket.
      shape: of the gradient as the update sees it.
      members: tensors that each replica computes a slice of.
      nodes: that make them.
      sinks: assignments of members.
      slots: resources of variables that only this cluster reads and assigns.
      weights: resources of the other variables that it assigns, one at most.
      updated: arguments of the planned function that the weights come from, also those of an update
        in a branch.
      kept: arguments of the planned function that the slots come from.
      chain: assignments of the weight that are sharded, in order.
      versions: by read of the weight that is a member, the index of the assignment that it sees.
      reductions: nodes that reduce members over some or all axes.
      branches: conditionals that get a member, and as which argument. If there is one, the update
        is in a branch of it.
      exact: whether all that it makes has the bits of a whole update: nothing in it is, or is made
        of, a sum that is added in another order.
      gather: where its new weight is gathered.
      reason: why it is left alone, a key of REASONS; None if it is sharded.
      detail: the node or tensor that is the reason.
    """

    root: str
    shape: Shape
    members: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    sinks: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    reductions: Mapping[str, Reduction] = field(default_factory=dict)
    branches: frozenset[tuple[str, int]] = frozenset()
    exact: bool = True
    gather: Gather = Gather()
    reason: str | None = None
    detail: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def held(self) -> tuple[str, ...]:
        """Resources of the variables that each replica keeps a shard of."""
        return (*self.slots, *(self.weights if self.gather.is_first else ()))

    def traced(self, inner: UpdateCluster, origins: Mapping[str, str]) -> UpdateCluster:
        """Return the cluster with the arguments that its variables come from.

        Args:
          inner: the cluster itself, or that of its update in a branch.
          origins: by variable of `inner`, the argument of the planned function.
        """
        return replace(
            self,
            updated=tuple(origins.get(weight, weight) for weight in inner.weights),
            kept=tuple(origins.get(slot, slot) for slot in inner.slots),
        )

    def leave(self, reason: str, detail: str) -> UpdateCluster:
        """Return the cluster with the verdict that it is left alone."""
        return replace(self, reason=reason, detail=detail)


@dataclass(frozen=True)
class Bucket:
    """An all-reduce, the gradients in it, and the verdict about it.

    Attributes:
      node: name of the all-reduce.
      tensors: the local ones that it reduces as one vector, in order.
      clusters: one for each tensor.
      reason: why all of it is left alone, a key of REASONS; or None.
      detail: the node that is the reason.
      function: that it is in, if the planned function calls that; else "".
      reduce: the all-reduce. In a branch after it, a node that has its type, device and keys.
      profit: what sharding it would save; None if that was not estimated.
      branch: where its update goes on, if that is in a branch of a conditional.
      early: indices of gradients that are left alone, and that a sharded update waits for.
      batches: of each gather before a first use the number of the type that travels (0: the
        bucket's own), and the indices of the clusters in it.
      written: assignments of slots that have run when the gather of the new weights ends.
    """

    node: str
    tensors: Sequence[str]
    clusters: Sequence[UpdateCluster]
    reason: str | None = None
    detail: str = ""
    function: str = ""
    reduce: Any = None
    profit: Profit | None = None
    branch: BranchPlan | None = None
    early: tuple[int, ...] = ()
    batches: tuple[tuple[int, tuple[int, ...]], ...] = ()
    written: tuple[str, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether replicas share any update of the bucket."""
        return self.reason is None and any(cluster.reason is None for cluster in self.clusters)

    @property
    def sharded(self) -> list[UpdateCluster]:
        """The clusters that are sharded."""
        if self.reason is not None:
            return []
        return [cluster for cluster in self.clusters if cluster.reason is None]

    def leave(self, reason: str, detail: str) -> Bucket:
        """Return the bucket with the verdict that all of it is left alone."""
        return replace(self, reason=reason, detail=detail)

    def in_function(self, name: str, origins: Mapping[str, str]) -> Bucket:
        """Return the bucket with where it is, and where its variables come from.

        Args:
          name: as of `function`.
          origins: by variable, the argument of the planned function.
        """
        clusters = tuple(one.traced(one, origins) for one in self.clusters)
        return replace(self, function=name, clusters=clusters)

    def with_cluster(self, index: int, cluster: UpdateCluster) -> Bucket:
        """Return the bucket with another cluster at an index."""
        clusters = (*self.clusters[:index], cluster, *self.clusters[index + 1 :])
        return replace(self, clusters=clusters)


@dataclass(frozen=True)
class BranchPlan:
    """How the update of a bucket goes on in a branch of a conditional.

    Attributes:
      node: name of the conditional.
      taken: name of the function that has the update.
      function: that function, with additional arguments for the keys of the all-reduce.
    """

    node: str
    taken: str
    function: UpdatePlan


@dataclass(frozen=True)
class UpdatePlan:
    """The plan of one function.

    Attributes:
      view: of the original function.
      shapes: of its tensors, and, by argument, of its variables.
      buckets: its all-reduces, in the order of their names.
      origins: by argument that is a variable, the argument of the planned function.
      levels: by reduction of a sharded cluster, how many others it waits for one after the other.
      calls: functions with all-reduces that it calls, in the order of the nodes that call them.
    """

    view: GraphView
    shapes: Mapping[str, Shape | None]
    buckets: tuple[Bucket, ...]
    origins: Mapping[str, str]
    levels: Mapping[str, int] = field(default_factory=dict)
    calls: tuple[CallPlan, ...] = ()

    @property
    def all_buckets(self) -> list[Bucket]:
        """The buckets of the function, then those of the functions that it calls."""
        return [*self.buckets, *(one for call in self.calls for one in call.buckets)]


@dataclass(frozen=True)
class CallPlan:
    """The plan of a function that another one calls.

    Attributes:
      node: that calls it.
      name: of the function.
      function: its plan; None if its graph is not known.
    """

    node: str
    name: str
    function: UpdatePlan | None

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of the function and of those that it calls."""
        if self.function is None:
            return [Bucket(self.node, (), (), "nested", self.name, self.name)]
        return self.function.all_buckets


@dataclass(frozen=True)
class PlanOptions:
    """What the user asked for.

    Attributes:
      exact: leave alone what would not have the bits of a whole update.
      profitable: leave alone what would make the step longer, by an estimate.
      first_use: gather weights right before their first use, where that is possible.
      narrow: let these travel in a narrower type, where all that read them cast them to it.
      is_one: one operation will do the update of a weight.
    """

    exact: bool = False
    profitable: bool = False
    first_use: bool = False
    narrow: bool = False
    is_one: bool = False


@dataclass(frozen=True)
class ShardedUpdate:
    """The verdicts about a function, and the functions to run in its place.

    Attributes:
      buckets: its all-reduces, in the order of their nodes' names; then those of functions that it
        calls.
      function: the `FunctionDef` to run instead; None if nothing is sharded.
      shards: variables that each replica keeps a shard of.
      functions: `FunctionDef`s that it calls, to be registered before it runs.
      shapes: of the new function's tensors, as far as they are known.
    """

    buckets: Sequence[Bucket]
    function: Any | None = None
    shards: Sequence[ShardSpec] = ()
    functions: Sequence[Any] = ()
    shapes: Mapping[str, Shape | None] = field(default_factory=dict)


def sharded_clusters(buckets: Iterable[Bucket]) -> list[UpdateCluster]:
    """Return the clusters of buckets that are sharded."""
    return [cluster for bucket in buckets for cluster in bucket.sharded]
