# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Up to which size it pays to pack a tensor into the frame of a fused receive.

    python benchmarks/large_tensors.py --json large_tensors.json

A worker reads several equal tensors from a server, in one fused receive, in two variants: `packed`
copies all of them into the frame; `beside` answers with an empty frame and leaves each tensor to a
receive of its own, which copies nothing on the sender and costs an RPC. What the sender does is
decided by its environment variable TF_FUSE_MAX_PACKED_TENSOR_BYTES. The counters tell that it did
so; a variant that did something else is an error, not a number.

With few tensors (--tensors 8) the result chooses kDefaultMaxPackedTensorBytes, with many (--tensors
64) kDefaultMaxFrameBytes, both in cc/transport/limits.h.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from examples import compare
from examples.progress import display
from examples.session import Session, SessionError

_VARIABLE = "TF_FUSE_MAX_PACKED_TENSOR_BYTES"
_FRAME_VARIABLE = "TF_FUSE_MAX_FRAME_BYTES"
_LIMITS = {"packed": 1 << 30, "beside": 1}  # bytes
_KIB = 1024
_SIZES_KIB = (16, 64, 256, 1024, 4096, 16384)
# So many bytes per round, that small sizes are not lost in noise and large ones end some day.
_ROUND_BYTES = 512 << 20


class WrongPathError(RuntimeError):
    """A variant's tensors did not travel the way that its name says."""


def steps_per_round(tensors: int, tensor_bytes: int) -> int:
    """Steps that move about `_ROUND_BYTES`, but at least 5 and at most 100."""
    return max(5, min(100, _ROUND_BYTES // (tensors * tensor_bytes)))


def check_path(
    variant: str, tensor_bytes: int, tensors: int, tasks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Checks that the tensors of a variant were packed, or were not.

    Args:
      variant: "packed" or "beside".
      tensor_bytes: size of each tensor.
      tensors: how many travel in each fused receive; empty ones of control edges may join them.
      tasks: task to counters, as `tf_fuse.cluster_metrics`.

    Raises:
      WrongPathError: they took the other way, or were not fused at all.
    """
    rpcs = sum(counters["fused_rpcs"] for counters in tasks.values())
    beside = sum(counters["beside_tensors"] for counters in tasks.values())
    expected = {"packed": 0, "beside": tensors * rpcs}[variant]
    if rpcs == 0 or beside != expected:
        raise WrongPathError(
            f"variant {variant}, {tensor_bytes} bytes: {beside} tensors of {rpcs} fused receives "
            f"went beside the frame, expected {expected} of more than 0; does the library read "
            f"{_VARIABLE}? It was {_LIMITS[variant]}."
        )


def measure(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Runs both variants in turn, for one size after the other.

    Args:
      args: the command line.
      progress: gets a task per size and variant.

    Returns:
      What `--json` writes.

    Raises:
      SessionError: a process failed.
      WrongPathError: see `check_path`.
    """
    rows = []
    for size_kib in args.sizes_kib:
        size = size_kib * _KIB
        steps = args.steps or steps_per_round(args.tensors, size)
        spec = {
            "mode": "fused",
            "workload": "large",
            "options": {"tensors": args.tensors, "tensor_bytes": size},
        }
        variants = {
            f"{name} {size_kib} KiB": compare.Variant(
                spec, {_VARIABLE: str(limit), _FRAME_VARIABLE: str(1 << 30)}
            )
            for name, limit in _LIMITS.items()
        }

        def check(label: str, session: Session, size: int = size) -> None:
            check_path(label.split()[0], size, args.tensors, session.metrics())

        rounds, _ = compare.run_in_turn(variants, args.rounds, steps, progress, check)
        rows.append(row(size, steps, {label.split()[0]: r for label, r in rounds.items()}))
    return {
        "settings": {"tensors": args.tensors, "rounds": args.rounds},
        "sizes": rows,
        "largest_packed_bytes": largest_worth_packing(rows),
    }


def row(
    tensor_bytes: int, steps: int, rounds: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """The numbers of one size.

    Args:
      tensor_bytes: the size.
      steps: per round.
      rounds: "packed" and "beside" to `Round.as_dict()` of each round.

    Returns:
      tensor_bytes, steps, ms_per_step {variant: {median, min, max}}, cpu_ms_per_step {variant:
      all tasks together} and packed_over_beside (ratio of times by round: below 1, packing wins).
    """
    ms = {name: [1e3 / r["steps_per_s"] for r in of] for name, of in rounds.items()}
    ratios = [p / b for p, b in zip(ms["packed"], ms["beside"], strict=True)]
    cpu = {name: compare.summarize(of)["cpu_ms_per_step"] for name, of in rounds.items()}
    return {
        "tensor_bytes": tensor_bytes,
        "steps": steps,
        "ms_per_step": {name: compare.spread(values) for name, values in ms.items()},
        "cpu_ms_per_step": {name: by["worker"] + by["ps"] for name, by in cpu.items()},
        "packed_over_beside": compare.spread(ratios),
    }


def largest_worth_packing(rows: Sequence[Mapping[str, Any]]) -> int:
    """The largest size up to which packing was not slower, at that size and all smaller ones.

    Args:
      rows: results of `row`, by growing size.

    Returns:
      Bytes; 0 when packing was slower at the smallest size already.
    """
    largest = 0
    for entry in rows:
        if entry["packed_over_beside"]["median"] > 1:
            break
        largest = entry["tensor_bytes"]
    return largest


def render(result: Mapping[str, Any]) -> Table:
    """The result as a table, a row per size."""
    settings = result["settings"]
    table = Table(
        title=f"{settings['tensors']} tensors in one fused receive, {settings['rounds']} rounds"
    )
    for column in ("KiB each", "packed\nms/step (min to max)", "beside\nms/step (min to max)",
                   "packed / beside\n(min to max)", "CPU ms/step\npacked", "beside"):  # fmt: skip
        table.add_column(column, justify="right")

    def span(values: Mapping[str, float]) -> str:
        return f"{values['median']:.2f} ({values['min']:.2f} to {values['max']:.2f})"

    for entry in result["sizes"]:
        table.add_row(
            str(entry["tensor_bytes"] // _KIB),
            span(entry["ms_per_step"]["packed"]),
            span(entry["ms_per_step"]["beside"]),
            span(entry["packed_over_beside"]),
            f"{entry['cpu_ms_per_step']['packed']:.2f}",
            f"{entry['cpu_ms_per_step']['beside']:.2f}",
        )
    return table


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Packed into the frame, or beside it?")
    parser.add_argument("--sizes-kib", type=int, nargs="+", default=list(_SIZES_KIB))
    parser.add_argument("--tensors", type=int, default=8, help="per fused receive, at least 2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="per round; chosen by size when not given")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args(argv)
    if args.tensors < 2:
        parser.error(f"--tensors must be at least 2, got {args.tensors}: one is never fused")
    if min(args.sizes_kib) < 1:
        parser.error(f"--sizes-kib must be at least 1, got {min(args.sizes_kib)}")
    args.sizes_kib = sorted(set(args.sizes_kib))
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints its table; see --help.

    Returns:
      0; or 1 when a process failed or the tensors did not take the way they should.
    """
    args = parse(argv)
    console = Console()
    try:
        with display(console) as progress:
            result = measure(args, progress)
    except (SessionError, WrongPathError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(render(result))
    largest = result["largest_packed_bytes"]
    console.print(f"packing is not slower up to {largest // _KIB} KiB", highlight=False)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"all numbers: {args.json}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
