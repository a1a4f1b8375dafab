# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define a replica's shard of a variable, and the window of elements that the replica computes.

Vectorized kernels compute a tensor's last elements, which do not fill a vector register, by other
instructions than the rest, and some functions (a reciprocal square root) then differ in the last
bit. So what is computed is a `window`: as many elements more than the replica's own ones, zeros of
the gradient, as it takes for each element to be computed as in the whole tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from tf_fuse.function_graph.builder import Shape

# A multiple of what fills a vector register, of any type.
_REGISTER = 64


@dataclass(frozen=True)
class ShardSpec:
    """A variable that this replica keeps a shard of.

    Attributes:
      argument: of the function: the handle of the whole variable.
      shared_name: of the variable that has the shard.
      begin: first element of the window that the shard holds.
      end: the one after the last.
      own: the elements of it that are this replica's; the others mean nothing.
      shape: of the whole.
      dtype: number of the type.
      owns: as `own`, of each replica.
      rank: of the replica whose shard it is.
      groups: of the replicas; each has all elements once.
      is_weight: whether it is a weight, and not of the optimizer.
    """

    argument: str
    shared_name: str
    begin: int
    end: int
    own: tuple[int, int]
    shape: Shape
    dtype: int
    owns: tuple[tuple[int, int], ...] = ()
    rank: int = 0
    groups: int = 1
    is_weight: bool = False


def window(own: tuple[int, int], size: int) -> tuple[int, int]:
    """Return the elements to compute so that a replica's own ones have the bits of the whole.

    Args:
      own: first element, and the one after the last.
      size: of the tensor.

    Returns:
      A range around it, as `own`; nothing around nothing.
    """
    begin, end = own
    if begin == end:
        return own
    begin, end = begin // _REGISTER * _REGISTER, min(-(-end // _REGISTER) * _REGISTER, size)
    # (Grappler takes a vector of one element for a scalar.)
    return (begin if end - begin > 1 else max(0, begin - _REGISTER)), end
