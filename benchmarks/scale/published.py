# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The settings of the FuseRecv RFC and of Xu et al.: the predicted gain beside the published one.

    python benchmarks/scale/published.py --rates costs.json

The RFC (tensorflow/community, 20200411) names neither machines nor network. So each row is
predicted for several numbers of cores and links. Xu et al. (2020, arXiv:2004.13336) measured on
accelerators, whose costs are not those of the machine that was calibrated but data sheets'.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.table import Table

from examples.progress import open_console
from tf_fuse.cli.load import model as load_model
from tf_fuse.scale import prediction
from tf_fuse.scale.collective_rates import WAYS, CollectiveRates, WayRates
from tf_fuse.scale.rates import Rates, load_rates
from tf_fuse.scale.replicas import job as replicas
from tf_fuse.scale.replicas.step import Part, ReplicaStep
from tf_fuse.scale.simulation.job import simulate
from tf_fuse.scale.simulation.setting import Setting
from tf_fuse.shard_update.cost_figures import UpdateCosts

# Workers, servers, and what the RFC says of them.
_ROWS = ((5, 1, "1.4"), (400, 20, "1.5 to 2 (more than 400 workers)"))
_HOSTS = ((8, "10Gbit,0.1ms"), (16, "10Gbit,0.1ms"), (16, "25Gbit,0.05ms"))
ASSUMPTIONS = (
    "wide & deep as benchmarks/fuse_recv has it: 40 columns of ids, batch 128",
    "tables whole, while the RFC's were partitioned; its step had about 950 receives",
    "no coordinator: the RFC's workers ran sessions of their own",
    "the cores of the machine that was calibrated, a host for each task",
    "20 servers for 400 workers: the RFC gives no number",
    "updates and operations as this version fuses them; the RFC fused receives alone",
)


# Xu et al., Transformer with Adam on 2,048 cores of TPU v3: ms per step.
_XU_WHOLE_MS, _XU_SHARDED_MS = 46.5, 25.6
_XU_REPLICAS, _XU_CHIPS, _XU_WEIGHTS = 2048, 1024, 210e6
_XU_MEMORY_BYTES_PER_S = 450e9  # Of a core; a chip has 900.
_XU_LINK_BYTES_PER_S = 4 * 656e9 / 8  # Of a chip: four links.
# Adam reads the gradient, and reads and writes the weight and two slots.
_XU_PASSES = 7
XU_ASSUMPTIONS = (
    "Xu et al. publish neither weights nor links: 210 million weights (Transformer, big), of four "
    "bytes, Adam in one pass; 450 GB/s of memory a core; four links of 656 Gbit/s a chip",
    "gradients and weights travel as float32, at the full rate of all links, in a ring over all "
    "chips; nothing overlaps",
    "what computing takes is what the published whole step leaves",
    "an operation, a message and a second collective cost nothing by themselves",
)


def predict_xu() -> list[dict[str, Any]]:
    """Return what the planner says of Xu et al.'s setting, by the share of memory's rate."""
    free = CollectiveRates(dict.fromkeys(WAYS, WayRates(0.0, 0.0, 0.0)))
    nothing = UpdateCosts(gradient_us=0.0, collective_us=0.0)
    setting = replicas.Setting(
        _XU_REPLICAS, _XU_CHIPS, 2.0, _XU_LINK_BYTES_PER_S, algorithm=replicas.RING
    )
    rows = []
    for share in (1.0, 0.8, 0.6):
        update = Part(_XU_PASSES * 4 * _XU_WEIGHTS / (share * _XU_MEMORY_BYTES_PER_S))

        def step_s(mode: str, compute_s: float, update: Part = update) -> float:
            step = ReplicaStep("", 4 * _XU_WEIGHTS, 0, Part(compute_s), update, update)
            return replicas.simulate(step, mode, free, setting, nothing).step_s

        compute_s = max(0.0, 1e-3 * _XU_WHOLE_MS - step_s("fused", 0.0))
        whole_s, sharded_s = step_s("fused", compute_s), step_s("sharded", compute_s)
        rows.append(
            {
                "memory rate": f"{share:.0%}",
                "update, ms": 1e3 * update.cpu_s,
                "computing, ms": 1e3 * compute_s,
                "whole, ms": 1e3 * whole_s,
                "sharded, ms": 1e3 * sharded_s,
                "gain": whole_s / sharded_s,
                "published": f"{_XU_WHOLE_MS / _XU_SHARDED_MS:.2f}",
            }
        )
    return rows


def predict(model: str, rates: Rates) -> list[dict[str, Any]]:
    """Return what the planner says of each of the RFC's settings."""
    traced = load_model.load(model, 128)
    cpu_s = load_model.measure_cpu_s(traced)
    assert cpu_s is not None  # It has arguments, not specifications.
    scale = rates.compute_scale(traced.on(1)[0], cpu_s)
    alone = dataclasses.replace(rates, dispatch_s=0.0, dispatch_handle_s=0.0, watch_share=0.0)
    rows = []
    for workers, servers, published in _ROWS:
        graphs = traced.on(servers)
        for cores, text in _HOSTS:
            link = prediction.Link.from_text(text)
            setting = Setting(workers, cores, link.bytes_per_s, link.seconds, compute_scale=scale)
            stock, fused = (simulate(graph, alone, setting) for graph in graphs)
            rows.append(
                {
                    "workers": workers,
                    "servers": servers,
                    "cores": cores,
                    "link": text,
                    "receives": [graph.rpcs for graph in graphs],
                    "stock": stock.steps_per_s,
                    "fused": fused.steps_per_s,
                    "gain": fused.steps_per_s / stock.steps_per_s,
                    "published": published,
                    "stock stops at": prediction.bottleneck(stock),
                }
            )
    return rows


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(
            *(f"{one:.2f}" if isinstance(one, float) else str(one) for one in row.values())
        )
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Predict and print; see --help."""
    parser = argparse.ArgumentParser(description="Predict published settings.")
    parser.add_argument("--rates", type=Path, required=True, help="what tf-fuse calibrate wrote")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args(argv)
    rows = predict("benchmarks.scale.models:rfc", load_rates(args.rates))
    xu = predict_xu()
    console = open_console()
    console.print(_table("FuseRecv RFC: steps/s, predicted", rows))
    console.print(_table("Xu et al.: ms per step, predicted", xu))
    for one in (*ASSUMPTIONS, *XU_ASSUMPTIONS):
        console.print(f"* {one}", highlight=False)
    if args.json:
        args.json.write_text(
            json.dumps(
                {"rows": rows, "xu": xu, "assumptions": [*ASSUMPTIONS, *XU_ASSUMPTIONS]}, indent=1
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
