# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run reduce-scatter, all-gather and all-reduce among the members of a group.

    group = tf_fuse.collectives.Group(4)

    @tf.function
    def step(gradient):
        shard = tf_fuse.collectives.reduce_scatter(gradient, group)
        ...
        return tf_fuse.collectives.all_gather(shard, gradient.shape, group)

Every member of the group calls the same functions in the same order, as with all collectives. Call
them in `tf.function`s: under `MultiWorkerMirroredStrategy` and `MirroredStrategy`, where the group
is known, and in programs of several processes whose servers know each other. Servers of the
protocol "grpc+fuse" use the cheapest transport (docs/collectives.md); others use TensorFlow's.

With p members and V bytes, reduce-scatter and all-gather bring (p - 1) / p * V bytes to each
member, all-reduce twice as many. Rank r's shard of a tensor is chunk r of TensorFlow's ring
(`RingReducer`), summed in the ring's order; so both together have the bits of an all-reduce. See
"Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training" (Xu et al., 2020).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_fuse import _native
from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.graphs import control_dependencies

_ALIGNMENT = 64  # bytes: EIGEN_MAX_ALIGN_BYTES of TensorFlow's build
# Keys of groups that are made from their size or ranks; strategies count from 1.
_FIRST_GROUP_KEY = 1 << 30
_FIRST_INSTANCE_KEY = 1 << 30

_lock = threading.Lock()
_next_instance: dict[tuple[int, str], int] = {}


class Group:
    """The members of collectives: `size` devices that use the same `key`.

    TensorFlow forms a group from the first `size` devices that use its key, and ranks them by name.
    A key belongs to one group as long as the processes run.

    Attributes:
      size: number of members.
      key: equal in all members, and different in each group.
      timeout_seconds: how long a collective waits for members before it fails; 0 waits forever.
    """

    def __init__(self, size: int, key: int | None = None, timeout_seconds: float = 0.0):
        """Name a group; nothing is sent.

        Args:
          size: number of members, 1 or more.
          key: an int32 above 0; None for one that depends on the size alone, for the group of all.
          timeout_seconds: see above.

        Raises:
          ValueError: a number is out of range.
        """
        if size < 1:
            raise ValueError(f"a group has 1 member or more, got {size}")
        if key is not None and not 0 < key < 2**31:
            raise ValueError(f"the key of a group is from 1 to 2**31 - 1, got {key}")
        if timeout_seconds < 0:
            raise ValueError(f"timeout_seconds is 0 or more, got {timeout_seconds}")
        self.size = size
        self.key = _FIRST_GROUP_KEY + size if key is None else key
        self.timeout_seconds = timeout_seconds

    @classmethod
    def of_ranks(cls, ranks: Sequence[int], world: int, timeout_seconds: float = 0.0) -> Group:
        """Return the group of some of the `world` ranks; only these may use it.

        Args:
          ranks: of the members, in the group of all.
          world: size of the group of all.
          timeout_seconds: as in the constructor.

        Raises:
          ValueError: a rank is out of range, or named twice.
        """
        members = sorted(ranks)
        if len(set(members)) != len(members) or not members:
            raise ValueError(f"ranks are different and 1 or more, got {list(ranks)}")
        if members[0] < 0 or members[-1] >= world:
            raise ValueError(f"ranks are from 0 to {world - 1}, got {list(ranks)}")
        name = f"{world}:{','.join(map(str, members))}".encode()
        key = (_FIRST_GROUP_KEY | zlib.crc32(name)) & 0x7FFFFFFF
        return cls(len(members), key, timeout_seconds)

    def __repr__(self) -> str:
        return f"Group(size={self.size}, key={self.key}, timeout_seconds={self.timeout_seconds})"


def shard_range(elements: int, element_bytes: int, size: int, rank: int) -> tuple[int, int]:
    """Return the elements of a tensor that are a rank's shard.

    Args:
      elements: of the tensor.
      element_bytes: of its type: 2, 4 or 8.
      size: of the group.
      rank: of the member.

    Returns:
      The first element, and one past the last; equal if the shard is empty. Shards begin at
      multiples of 64 bytes, so those of the last ranks are shorter.
    """
    if elements == 0:
        return 0, 0
    # Of the ring with one subdivision, which CollectiveReduceV2 has by default.
    chunk = -(-elements // size) * element_bytes
    chunk = (chunk // _ALIGNMENT + 1) * _ALIGNMENT // element_bytes
    begin = min(elements, rank * chunk)
    return begin, min(elements, begin + chunk)


def packed_ranges(
    elements: Sequence[int], element_bytes: int, size: int, rank: int
) -> list[tuple[int, int]]:
    """Return a rank's elements of each of several tensors that are cut as one concatenation.

    Args:
      elements: of each tensor.
      element_bytes: of their type: 2, 4 or 8.
      size: of the group.
      rank: of the member.

    Returns:
      For each tensor, the first element and one past the last, as of `shard_range`.
    """
    begin, end = shard_range(sum(elements), element_bytes, size, rank)
    ranges = []
    first = 0
    for count in elements:
        here = min(max(begin - first, 0), count)
        ranges.append((here, min(max(end - first, here), count)))
        first += count
    return ranges


@tf.autograph.experimental.do_not_convert
def all_reduce(x: Any, group: Group | None = None, packed: bool = False) -> Any:
    """Sum a tensor over the members of a group.

    Args:
      x: a tensor of type bfloat16, float16, float32, float64, int32 or int64, of the same shape and
        type in all members; or a list of tensors of one type, which travel together.
      group: None for all replicas of the strategy whose replica context this is.
      packed: whether a list has the bits of one all-reduce of its tensors' concatenation, as a
        strategy makes it of its gradients; else those of one of each tensor.

    Returns:
      The sum, of the shape of x, with the bits of TensorFlow's CollectiveReduceV2; or a list. Its
      gradient is the sum of the members' gradients.

    Raises:
      ValueError: no group was given where no strategy is.
      tf.errors.OpError: a member failed, or differs; the text names it.
    """
    group = _group(group)
    tensors, is_list = _tensors(x)
    sums = _native.load().tf_fuse_all_reduce(inputs=tensors, packed=packed, **_parameters(group))
    return list(sums) if is_list else sums[0]


@tf.autograph.experimental.do_not_convert
def reduce_scatter(x: Any, group: Group | None = None, packed: bool = False) -> Any:
    """Sum a tensor over the members of a group, and give each member its shard.

    Args:
      x: as of `all_reduce`; the tensors of a list travel together, each with shards of its own.
      group: as of `all_reduce`.
      packed: whether the tensors of a list are cut as their concatenation would be: a member's
        shard of a tensor is what `packed_ranges` says, which may be all of it, or nothing.

    Returns:
      A vector: the elements `shard_range` of the flattened sum; or a list of vectors. Its gradient
      is the all-gather of the shards' gradients.

    Raises:
      ValueError: no group was given where no strategy is.
      tf.errors.OpError: a member failed, or differs; the text names it.
    """
    group = _group(group)
    tensors, is_list = _tensors(x)
    shards = _native.load().tf_fuse_reduce_scatter(
        inputs=tensors, packed=packed, **_parameters(group)
    )
    return list(shards) if is_list else shards[0]


@tf.autograph.experimental.do_not_convert
def all_gather(shard: Any, shape: Any, group: Group | None = None, packed: bool = False) -> Any:
    """Put the shards of all members together, as `reduce_scatter` cuts them.

    Args:
      shard: this member's, a vector; or a list of them.
      shape: of the whole tensor, the same in all members; of a list a list of shapes.
      group: as of `all_reduce`.
      packed: as of the `reduce_scatter`.

    Returns:
      The whole tensor; or a list. Its gradient is the reduce-scatter of the tensor's gradient.

    Raises:
      ValueError: no group was given where no strategy is, or the lists differ in length.
      tf.errors.InvalidArgumentError: the shard is not as long as the shape says.
      tf.errors.OpError: a member failed, or differs; the text names it.
    """
    group = _group(group)
    shards, is_list = _tensors(shard)
    shapes = list(shape) if is_list else [shape]
    if len(shapes) != len(shards):
        raise ValueError(f"{len(shards)} shards, but {len(shapes)} shapes")
    results = _native.load().tf_fuse_all_gather(
        shards=shards,
        shapes=[tf.cast(tf.convert_to_tensor(one), tf.int64) for one in map(_as_shape, shapes)],
        packed=packed,
        **_parameters(group),
    )
    return list(results) if is_list else results[0]


@tf.autograph.experimental.do_not_convert
def two_level_reduce_scatter(x: Any, inner: Group, outer: Group) -> Any:
    """Sum a tensor over all members, and give each its shard within its inner group.

    Section 5.2 of the paper: a reduce-scatter inside of each inner group, then an all-reduce of
    each shard across the groups. At large scale shards stay large enough, and what crosses between
    groups (hosts, racks) is 1 / size of the inner group of the tensor.

    Args:
      x: as of `all_reduce`.
      inner: the group of this member.
      outer: the members of the same rank in all inner groups.

    Returns:
      As of `reduce_scatter` with `inner`. The order of additions is that of the two levels, so the
      last bits may differ from a sum over all members at once.

    Raises:
      tf.errors.OpError: a member failed, or differs; the text names it.
    """
    shard = reduce_scatter(x, inner)
    return all_reduce(shard, outer)


def _as_shape(shape: Any) -> Any:
    if isinstance(shape, tf.TensorShape):
        return tf.constant(shape.as_list(), tf.int64)
    if isinstance(shape, (list, tuple)) and not shape:
        return tf.constant([], tf.int64)
    return shape


def _tensors(x: Any) -> tuple[list[Any], bool]:
    """Return the tensors, and whether they were a list."""
    is_list = isinstance(x, (list, tuple)) and any(tf.is_tensor(one) for one in x)
    return [tf.convert_to_tensor(one) for one in (x if is_list else [x])], is_list


def _group(group: Group | None) -> Group:
    if group is not None:
        return group
    replica = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    if replica is None:
        raise ValueError(
            "collectives need a group where no replica of a strategy runs: "
            "group=tf_fuse.collectives.Group(number of members)"
        )
    return Group(replica.strategy.num_replicas_in_sync)


def _parameters(group: Group) -> dict[str, Any]:
    return {
        "group_size": group.size,
        "group_key": group.key,
        "instance_key": _instance_key(group),
        "timeout_seconds": group.timeout_seconds,
    }


def _instance_key(group: Group) -> int:
    """Return the next key. All members count alike; each replica of a process counts separately."""
    replica = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    member = "" if replica is None else str(replica.replica_id_in_sync_group)
    with _lock:
        key = _next_instance.get((group.key, member), _FIRST_INSTANCE_KEY)
        _next_instance[group.key, member] = key + 1
    return key


def _gradient_parameters(op: Any) -> dict[str, Any]:
    return {
        **dict(zip(("group_size", "group_key", "instance_key"), op.inputs[-3:], strict=True)),
        # The same keys, but another tag: the gradient runs concurrently with its operation.
        "tag": op.get_attr("tag").decode() + "'",
        "packed": op.get_attr("packed"),
        "timeout_seconds": op.get_attr("timeout_seconds"),
    }


@tf.RegisterGradient("TfFuse>ReduceScatter")
def _reduce_scatter_gradient(op: Any, *gradients: Any) -> list[Any]:
    whole = _native.load().tf_fuse_all_gather(
        shards=list(gradients),
        shapes=[tf.shape(one, tf.int64) for one in op.inputs[: len(gradients)]],
        **_gradient_parameters(op),
    )
    return [*whole, None, None, None]


@tf.RegisterGradient("TfFuse>AllGather")
def _all_gather_gradient(op: Any, *gradients: Any) -> list[Any]:
    if op.get_attr("bounds"):
        raise LookupError(f"{op.name}: an all-gather with bounds has no gradient")
    shards = _native.load().tf_fuse_reduce_scatter(
        inputs=list(gradients), **_gradient_parameters(op)
    )
    return [*shards, *[None] * len(gradients), None, None, None]


@tf.RegisterGradient("TfFuse>AllReduce")
def _all_reduce_gradient(op: Any, *gradients: Any) -> list[Any]:
    sums = _native.load().tf_fuse_all_reduce(inputs=list(gradients), **_gradient_parameters(op))
    return [*sums, None, None, None]


if features.works(feature_names.COLLECTIVES):
    control_dependencies.run_side_by_side(
        ("TfFuse>ReduceScatter", "TfFuse>AllGather", "TfFuse>AllReduce", "TfFuse>Permute")
    )
