# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Up to which size it pays to pack a tensor into the frame of a fused receive.

    python benchmarks/fuse_recv/large_tensors.py --json large_tensors.json

A worker reads several equal tensors from a server, in one fused receive, in two variants: `packed`
copies all of them into the frame; `beside` answers with an empty frame and leaves each tensor to a
receive of its own, which copies nothing on the sender and costs an RPC. What the sender does is
decided by its environment variable TF_FUSE_MAX_PACKED_TENSOR_BYTES. The counters tell that it did
so; a variant that did something else is an error, not a number.

With few tensors (--tensors 8) the result chooses kDefaultMaxPackedTensorBytes, with many (--tensors
64) kDefaultMaxFrameBytes, both in cc/base/limits.h.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.fuse_recv import by_size
from benchmarks.fuse_recv.by_size import KIB, WrongPathError

_VARIABLE = "TF_FUSE_MAX_PACKED_TENSOR_BYTES"
_FRAME_VARIABLE = "TF_FUSE_MAX_FRAME_BYTES"
_LIMITS = {"packed": 1 << 30, "beside": 1}  # bytes
_SIZES_KIB = (16, 64, 256, 1024, 4096, 16384)


def check_path(
    variant: str, tensor_bytes: int, tensors: int, tasks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Check that the tensors of a variant were packed, or were not.

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
    """Run both variants in turn, for one size after the other.

    Args:
      args: the command line.
      progress: gets a task per size and variant.

    Returns:
      What `--json` writes.

    Raises:
      SessionError: a process failed.
      WrongPathError: see `check_path`.
    """
    rows = by_size.measure(
        args,
        progress,
        {
            name: {_VARIABLE: str(limit), _FRAME_VARIABLE: str(1 << 30)}
            for name, limit in _LIMITS.items()
        },
        lambda variant, size, tasks: check_path(variant, size, args.tensors, tasks),
        row,
        # By cost, tensors above the limit would not be fused at all.
        fuse_options={"fuse_grouping": "level"},
    )
    return {
        "settings": {"tensors": args.tensors, "rounds": args.rounds},
        "sizes": rows,
        "largest_packed_bytes": largest_worth_packing(rows),
    }


def row(tensor_bytes: int, steps: int, rounds: by_size.Rounds) -> dict[str, Any]:
    """Return the numbers of one size.

    Args:
      tensor_bytes: the size.
      steps: per round.
      rounds: "packed" and "beside" to `Round.as_dict()` of each round.

    Returns:
      tensor_bytes, what `by_size.numbers` returns, and packed_over_beside (ratio of times by round:
      below 1, packing wins).
    """
    return {
        "tensor_bytes": tensor_bytes,
        **by_size.numbers(steps, rounds),
        "packed_over_beside": by_size.ratio(rounds, "packed", "beside"),
    }


def largest_worth_packing(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest size up to which packing was not slower at any size.

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
    """Return the result as a table, a row per size."""
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
            str(entry["tensor_bytes"] // KIB),
            span(entry["ms_per_step"]["packed"]),
            span(entry["ms_per_step"]["beside"]),
            span(entry["packed_over_beside"]),
            f"{entry['cpu_ms_per_step']['packed']:.2f}",
            f"{entry['cpu_ms_per_step']['beside']:.2f}",
        )
    return table


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = by_size.parser("Packed into the frame, or beside it?", _SIZES_KIB, tensors=8)
    args = by_size.parse(parser, argv)
    if min(args.sizes_kib) < 1:
        parser.error(f"--sizes-kib must be at least 1, got {min(args.sizes_kib)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; or 1 when a process failed or the tensors did not take the way they should.
    """
    return by_size.run(parse(argv), measure, _show)


def _show(console: Console, result: Mapping[str, Any]) -> None:
    console.print(render(result))
    largest = result["largest_packed_bytes"]
    console.print(f"packing is not slower up to {largest // KIB} KiB", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
