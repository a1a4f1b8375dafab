# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What planned layouts and relayouts cost: against the least there is, and against DTensor.

    python benchmarks/layout/run.py --json layout.json
    python benchmarks/layout/run.py --parts relayout --plot relayout.svg

`relayout` compares bytes over all pairs of layouts of a tensor (`relayout.py`), and `wire`
counts those of some, and of whole training steps, on the network, in four processes
(`wire.py`). `search` times searches of the strategies of models (`search.py`), `matmul` computes
what a layer costs in one, two and three dimensions (`matmul.py`), and `step` times training steps
with layouts that were found and others (`steps.py`). `processes` times steps of Keras models in 2
and 4 processes, beside MultiWorkerMirroredStrategy (`processes.py`; `--models` and `--processes`
take some of them), and `memory` trains a table that is larger than what a process may have
(`large_table.py`). The JSON has a key for each part that ran, with a list of rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))


from benchmarks.common import output
from benchmarks.layout import large_table as layout_large_table
from benchmarks.layout import matmul as layout_matmul
from benchmarks.layout import processes as layout_processes
from benchmarks.layout import relayout as layout_relayout
from benchmarks.layout import search as layout_search
from benchmarks.layout import steps as layout_steps
from benchmarks.layout import wire as layout_wire
from examples.progress import display, open_console

# Each has measure(progress), which returns rows, and render(rows), which returns a table.
PARTS: Mapping[str, Any] = {
    "relayout": layout_relayout,
    "wire": layout_wire,
    "search": layout_search,
    "matmul": layout_matmul,
    "step": layout_steps,
    "processes": layout_processes,
    "memory": layout_large_table,
}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure layouts and relayouts.")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="separated by commas; all by default"
    )
    parser.add_argument(
        "--models", default=",".join(layout_processes.MODELS), help="of the part processes"
    )
    parser.add_argument(
        "--processes", default=",".join(map(str, layout_processes.PROCESSES)), help="their numbers"
    )
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="draw the bytes of relayouts here")
    args = parser.parse_args(argv)
    args.parts = [part for part in args.parts.split(",") if part]
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown or not args.parts:
        parser.error(f"--parts takes {', '.join(PARTS)}, got {', '.join(unknown) or 'nothing'}")
    args.models = [one for one in args.models.split(",") if one]
    unknown = sorted(set(args.models) - set(layout_processes.MODELS))
    if unknown or not args.models:
        known = ", ".join(layout_processes.MODELS)
        parser.error(f"--models takes {known}, got {', '.join(unknown) or 'nothing'}")
    numbers = args.processes.split(",")
    if not all(one.isdecimal() and int(one) > 1 for one in numbers):
        parser.error(f"--processes takes numbers from 2 on, as 2,4, got {args.processes!r}")
    args.processes = [int(one) for one in numbers]
    if args.plot and "relayout" not in args.parts:
        parser.error("--plot draws the part relayout, which --parts leaves out")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables; see --help.

    Returns:
      0; 1 when a process failed.
    """
    args = parse(argv)
    console = open_console()
    result: dict[str, Any] = {}
    try:
        with display(console) as progress:
            for part in args.parts:
                chosen = (args.models, args.processes) if part == "processes" else ()
                result[part] = PARTS[part].measure(progress, *chosen)
    except output.ProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for part in args.parts:
        console.print(PARTS[part].render(result[part]))

    def tell(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    output.write(
        result, args, tell, lambda all_, path: layout_relayout.plot(all_["relayout"], path)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
