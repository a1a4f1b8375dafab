# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The collectives of PyTorch's gloo for `rank.py`. PyTorch alone is needed, no NumPy.

Shards are equal, and the last is padded: gloo takes no others. all_reduce works in place.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.collectives import rank as base


class Gloo:
    """A process of a group of PyTorch's."""

    def __init__(self, rank: int, ranks: int, store: str, interface: str):
        """Join the group; return when all ranks have.

        Args:
          rank: of this process.
          ranks: how many there are.
          store: a file that does not exist yet, the same for all.
          interface: the network interface by which the others reach this process.
        """
        self._rank, self._ranks = rank, ranks
        # By default gloo asks the resolver for an address of this host.
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        # reduce_scatter_tensor has a newer name since 2.14; older versions have this one alone.
        warnings.simplefilter("ignore", FutureWarning)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        self._calls: dict[str, Callable[[], Any]] = {}
        # The whole tensor and a shard, for all ops of a size.
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def prepare(self, op: str, elements: int) -> None:
        """See `collective_rank.Backend`."""
        chunk = base.equal_chunk(elements, self._ranks)
        if self._buffers is None:
            self._buffers = torch.empty(chunk * self._ranks), torch.empty(chunk)
        whole, shard = self._buffers
        whole.zero_()
        shard.zero_()
        begin = min(self._rank * len(shard), elements)
        end = min(begin + len(shard), elements)
        self._calls[op] = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, shard),
            "rs_ag": lambda: _rs_ag(whole, shard),
        }[op]
        if op == "all_gather":
            _fill(shard, begin, end)
        else:
            _fill(whole, 0, elements, rank=self._rank)
        try:
            self._calls[op]()
        except (NotImplementedError, RuntimeError) as e:
            text = str(e).splitlines()[0] if str(e) else type(e).__name__
            if "support" not in text and "implement" not in text:
                raise
            raise base.UnsupportedError(f"PyTorch {torch.__version__}: {text}") from e
        if op == "reduce_scatter":
            self._check(op, shard, begin, end, self._ranks)
        elif op == "all_gather":
            self._check(op, whole, 0, elements, 1)
        else:
            self._check(op, whole, 0, elements, self._ranks)
        # In place, sums would grow from call to call.
        whole.zero_()
        shard.zero_()

    def call(self, op: str) -> Callable[[], Any]:
        """See `collective_rank.Backend`."""
        return self._calls[op]

    def release(self) -> None:
        """See `collective_rank.Backend`."""
        self._calls.clear()
        self._buffers = None

    def counters(self) -> dict[str, int]:
        """Nothing: gloo does not count."""
        return {}

    def _check(self, op: str, result: torch.Tensor, begin: int, end: int, ranks: int) -> None:
        wrong, first = 0, (0, 0.0, 0.0)
        for at, until in base.blocks(begin, end):
            got, want = result[at - begin : until - begin], _pattern(at, until, ranks)
            found = torch.nonzero(got != want).flatten()
            if len(found) and not wrong:
                one = int(found[0])
                first = (at - begin + one, float(got[one]), float(want[one]))
            wrong += len(found)
        if wrong:
            raise base.WrongValueError(base.mismatch(op, self._rank, wrong, end - begin, *first))


def _rs_ag(whole: torch.Tensor, shard: torch.Tensor) -> None:
    dist.reduce_scatter_tensor(shard, whole)
    dist.all_gather_into_tensor(whole, shard)


def _fill(tensor: torch.Tensor, begin: int, end: int, rank: int = 0) -> None:
    """Write a range of one rank's tensor to the beginning of another one."""
    for at, until in base.blocks(begin, end):
        tensor[at - begin : until - begin] = _pattern(at, until, rank=rank)


def _pattern(begin: int, end: int, ranks: int = 1, rank: int = 0) -> torch.Tensor:
    """Return a range of one rank's tensor, or of the sum of all; see `collective_rank.offset`."""
    values = torch.arange(begin, end) % base.PERIOD * ranks
    return (values + base.offset(ranks, rank)).to(torch.float32)
