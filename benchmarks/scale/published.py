# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The settings of the FuseRecv RFC: the predicted gain beside the published one.

    python benchmarks/scale/published.py --rates costs.json

The RFC (tensorflow/community, 20200411) names neither machines nor network. So each row is
predicted for several numbers of cores and links.
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
from tf_fuse.scale.rates import Rates, load_rates
from tf_fuse.scale.simulation.job import Setting, simulate

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


def main(argv: Sequence[str] | None = None) -> int:
    """Predict and print; see --help."""
    parser = argparse.ArgumentParser(description="Predict the settings of the FuseRecv RFC.")
    parser.add_argument("--rates", type=Path, required=True, help="what tf-fuse calibrate wrote")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args(argv)
    rows = predict("benchmarks.scale.models:rfc", load_rates(args.rates))
    names = ("workers", "servers", "cores", "link", "receives", "stock", "fused", "gain",
             "published", "stock stops at")  # fmt: skip
    table = Table(title="FuseRecv RFC: steps/s, predicted")
    for name in names:
        table.add_column(name)
    for row in rows:
        cells = (row[name] for name in names)
        table.add_row(*(f"{one:.2f}" if isinstance(one, float) else str(one) for one in cells))
    console = open_console()
    console.print(table)
    for one in ASSUMPTIONS:
        console.print(f"* {one}", highlight=False)
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "assumptions": ASSUMPTIONS}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
