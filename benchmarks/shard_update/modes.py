# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The modes of `run.py`, and the processes of one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import rank_group
from benchmarks.common.rank_group import LOOPBACK, Measurement, Network, RankGroup, Variant

_PROGRAM = Path(__file__).resolve().parent / "rank.py"
_OURS = "grpc+fuse"
_TORCH_PROBE = (
    "import numpy, torch.distributed as d; assert d.is_gloo_available(), 'built without gloo'"
)


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way of training.

    Attributes:
      backend: "tensorflow" or "torch".
      protocol: of TensorFlow's servers.
      options: of `tf.config.optimizer.set_experimental_options`.
      zero: whether PyTorch deals the optimizer's state to the replicas.
      same_bits: whether its losses must be those of `stock`, to the last bit.
      whole: of a mode that shards updates, the one that differs from it in that alone; "" for none.
    """

    backend: str = "tensorflow"
    protocol: str = "grpc"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    zero: bool = False
    same_bits: bool = False
    whole: str = ""


_SHARD = {"shard_weight_update": True}
MODES: Mapping[str, Mode] = {
    "stock": Mode(),
    "unsharded": Mode(protocol=_OURS, same_bits=True),
    "unsharded_fused": Mode(protocol=_OURS, options={"fuse_weight_update": True}, same_bits=True),
    "sharded": Mode(protocol=_OURS, options=_SHARD, same_bits=True, whole="unsharded_fused"),
    "sharded_first_use": Mode(
        protocol=_OURS,
        options={**_SHARD, "shard_weight_update_gather": "first_use"},
        same_bits=True,
        whole="unsharded_fused",
    ),
    "sharded_unfused": Mode(
        protocol=_OURS,
        options={**_SHARD, "fuse_weight_update": False},
        same_bits=True,
        whole="unsharded",
    ),
    # A compiler may contract a product and a sum.
    "sharded_compiled": Mode(protocol=_OURS, options={**_SHARD, "compile_weight_update": True}),
    "ddp": Mode(backend="torch"),
    "zero": Mode(backend="torch", zero=True),
}


def options_of(mode: Mode, group_size: int) -> dict[str, Any]:
    """Return the options of a mode, if so many replicas share one copy of the state (0: all)."""
    options = dict(mode.options)
    if group_size and "shard_weight_update" in options:
        options["shard_weight_update_group_size"] = group_size
    return options


@dataclasses.dataclass(frozen=True)
class Round:
    """What a mode took in one round: whole steps, and steps that update nothing."""

    step: Measurement
    gradients: Measurement


class ModeGroup(RankGroup):
    """The replicas of one mode."""

    def __init__(
        self,
        name: str,
        python: str,
        replicas: int,
        timeout_s: float,
        spec: Mapping[str, Any],
        network: Network = LOOPBACK,
    ):
        """Start the processes; `wait_ready` waits.

        Args:
          name: of the mode.
          python: the interpreter of PyTorch's modes.
          replicas: how many processes.
          timeout_s: seconds that a command, or the start, may take.
          spec: "model", "sizes", "optimizer", "learning_rate" and, of the modes that shard updates,
            "group_size".
          network: where the replicas run.
        """
        self.name, mode = name, MODES[name]
        variant = Variant(
            name,
            backend=mode.backend,
            protocol=mode.protocol,
            python=python if mode.backend == "torch" else sys.executable,
        )
        options = options_of(mode, spec.get("group_size", 0))
        spec = {**spec, "options": options, "zero": mode.zero}
        super().__init__(variant, replicas, timeout_s, network, program=_PROGRAM, spec=spec)

    def build(self, warm_up: int) -> str | None:
        """Build the model and make the first steps; return why the mode cannot be had, if so.

        Raises:
          RankError: a replica failed.
        """
        return self.ask({"do": "prepare", "warm_up": warm_up}, "prepared")[0]["unsupported"]

    def round(self, steps: int) -> Round:
        """Make so many steps, and as many that update nothing.

        Raises:
          RankError: a replica failed.
        """
        if "shard_weight_update_gather" not in MODES[self.name].options:
            return Round(self.measure("step", steps), self.measure("gradients", steps))
        # What reads the weights between steps puts them together, which is not a part of a step.
        self.measure("gradients", 1)
        gradients = self.measure("gradients", steps)
        return Round(self.measure("step", steps), gradients)

    def finish(self) -> list[dict[str, Any]]:
        """By replica: "losses" (float.hex), "optimizer_state_bytes", "peak_rss_bytes", "estimate".

        Raises:
          RankError: a replica failed.
        """
        return self.ask({"do": "finish"}, "finished")


def why_no_torch(python: str) -> str | None:
    """Why an interpreter cannot run PyTorch's modes; None when it can."""
    return rank_group.why_not(python, _TORCH_PROBE)
