# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A replica of PyTorch's DistributedDataParallel on gloo, for `rank.py`.

PyTorch and NumPy are needed. The optimizer is PyTorch's, fused where it has that on CPU, with the
numbers of Keras's; with "zero" ZeroRedundancyOptimizer deals it to the replicas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.collectives import rank as base
from benchmarks.shard_update import models
from benchmarks.shard_update.torch_models import Net, loss_of


class Torch:
    """A replica."""

    def __init__(self, spec: Mapping[str, Any]):
        """Join the other replicas; return when all are there.

        Args:
          spec: see `shard_update_rank.make_trainer`.

        Raises:
          UnsupportedError: PyTorch lacks the optimizer.
        """
        if spec["optimizer"] not in models.TORCH_OPTIMIZERS:
            raise base.UnsupportedError(
                f"PyTorch {torch.__version__} has no optimizer like {spec['optimizer']}; it has "
                f"{', '.join(sorted(models.TORCH_OPTIMIZERS))}"
            )
        self._spec = spec
        # As torchrun does: replicas share the cores.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // spec["ranks"]))
        os.environ["GLOO_SOCKET_IFNAME"] = spec["interface"]
        dist.init_process_group(
            "gloo",
            init_method=f"file://{spec['store']}",
            rank=spec["rank"],
            world_size=spec["ranks"],
        )

    def build(self) -> None:
        """See `shard_update_rank.Trainer`."""
        spec = self._spec
        name, sizes = spec["model"], spec["sizes"]
        values = models.first_values(name, sizes)
        self._net = DistributedDataParallel(Net(name, sizes, values), gradient_as_bucket_view=True)
        kind_name, options = models.TORCH_OPTIMIZERS[spec["optimizer"]]
        kind = getattr(torch.optim, kind_name)
        options = {"lr": spec["learning_rate"], **options}
        parameters = self._net.parameters()
        if spec["zero"]:
            self._optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
                parameters, kind, parameters_as_bucket_view=True, **options
            )
        else:
            self._optimizer = kind(parameters, **options)
        self._batches = [
            tuple(torch.from_numpy(part) for part in batch)
            for batch in models.batches(name, sizes, spec["rank"])
        ]

    def step(self, at: int) -> Any:
        """See `shard_update_rank.Trainer`."""
        loss = self._backward(at)
        self._optimizer.step()
        return loss

    def gradients(self, at: int) -> None:
        """See `shard_update_rank.Trainer`."""
        self._backward(at)

    def _backward(self, at: int) -> torch.Tensor:
        self._optimizer.zero_grad()
        loss = loss_of(self._spec["model"], self._net, self._batches[at % len(self._batches)])
        loss.backward()  # reduces gradients as they come
        return loss.detach()

    def loss(self, result: Any) -> float:
        """See `shard_update_rank.Trainer`."""
        return float(result)

    def state_bytes(self) -> int:
        """See `shard_update_rank.Trainer`."""
        optimizer = self._optimizer
        own = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
        return sum(
            value.untyped_storage().nbytes()
            for state in own.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )

    def report(self) -> dict[str, Any] | None:
        """See `shard_update_rank.Trainer`."""
        return None

    def counters(self) -> dict[str, int]:
        """Nothing: gloo does not count."""
        return {}
