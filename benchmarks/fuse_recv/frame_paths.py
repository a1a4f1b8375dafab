# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""From which size on a frame of a fused receive gains by a data channel.

    python benchmarks/fuse_recv/frame_paths.py --json frame_paths.json

A worker reads several equal tensors from a server of its host, in one fused receive, in these
variants: `grpc` packs all of them into a frame that comes as the answer of the RPC; `shm` lets the
frame come through shared memory (`tcp`, if asked for, over a TCP connection of our own); `beside`
leaves each tensor to a receive of its own. The counters tell that they did so; a variant that did
something else is an error, not a number.

The result chooses kDefaultChannelFrameBytes in cc/base/limits.h.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress
from rich.table import Table

from benchmarks.fuse_recv import by_size
from benchmarks.fuse_recv.by_size import KIB, WrongPathError

_SIZES_KIB = (64, 256, 1024, 4096, 16384, 65536, 262144)
_LARGEST = {
    "TF_FUSE_MAX_FRAME_BYTES": str(1 << 30),
    "TF_FUSE_MAX_PACKED_TENSOR_BYTES": str(1 << 30),
}
_ENVIRONMENT = {
    "grpc": {**_LARGEST, "TF_FUSE_COLLECTIVE_PATHS": "grpc"},
    "shm": {**_LARGEST, "TF_FUSE_COLLECTIVE_PATHS": "shm", "TF_FUSE_CHANNEL_FRAME_BYTES": "1"},
    "tcp": {**_LARGEST, "TF_FUSE_COLLECTIVE_PATHS": "tcp", "TF_FUSE_CHANNEL_FRAME_BYTES": "1"},
    "beside": {
        **_LARGEST,
        "TF_FUSE_MAX_PACKED_TENSOR_BYTES": "1",
        "TF_FUSE_COLLECTIVE_PATHS": "grpc",
    },
}


def check_path(
    variant: str, frame_bytes: int, tensors: int, tasks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Check the way that the frames of a variant took.

    Args:
      variant: a key of the table of variants.
      frame_bytes: of all tensors of a fused receive together.
      tensors: how many they are.
      tasks: task to counters, as `tf_fuse.cluster_metrics`.

    Raises:
      WrongPathError: they took another way, or were not fused at all.
    """
    names = ("fused_rpcs", "single_rpcs", "bytes", "channel_frames", "channel_bytes")
    total = {name: sum(counters[name] for counters in tasks.values()) for name in names}
    by_channel = total["channel_bytes"] / max(total["bytes"], 1)
    # The first frames come by RPC: a channel is opened when one was large. Tensors that all go
    # beside the frame may not be fused at all.
    right = {
        "grpc": total["bytes"] > frame_bytes and total["channel_frames"] == 0,
        "beside": total["single_rpcs"] > tensors and total["bytes"] < frame_bytes,
        "shm": by_channel > 0.5,
        "tcp": by_channel > 0.5,
    }
    if not right[variant]:
        raise WrongPathError(
            f"variant {variant}, frames of {frame_bytes} bytes: they went another way, as the "
            f"tasks counted {total}; the environment was {_ENVIRONMENT[variant]}"
        )


def measure(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Run all variants in turn, for one size after the other.

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
        {name: _ENVIRONMENT[name] for name in args.variants},
        lambda variant, size, tasks: check_path(variant, size, args.tensors, tasks),
        row,
        whole_frames=True,
    )
    return {
        "settings": {"tensors": args.tensors, "rounds": args.rounds, "variants": args.variants},
        "sizes": rows,
    }


def row(frame_bytes: int, steps: int, rounds: by_size.Rounds) -> dict[str, Any]:
    """Return the numbers of one size.

    Args:
      frame_bytes: the size.
      steps: per round.
      rounds: variant to `Round.as_dict()` of each round.

    Returns:
      frame_bytes, what `by_size.numbers` returns, and over_grpc {variant: ratio of times by round,
      below 1 it wins}.
    """
    return {
        "frame_bytes": frame_bytes,
        **by_size.numbers(steps, rounds),
        "over_grpc": {
            name: by_size.ratio(rounds, name, "grpc") for name in rounds if name != "grpc"
        },
    }


def render(result: Mapping[str, Any]) -> Table:
    """Return the result as a table, a row per size."""
    settings = result["settings"]
    variants = settings["variants"]
    table = Table(title=f"frames of {settings['tensors']} tensors, {settings['rounds']} rounds")
    table.add_column("KiB", justify="right")
    for name in variants:
        table.add_column(f"{name}\nms/step", justify="right")
    for name in variants[1:]:
        table.add_column(f"{name} / grpc\n(min to max)", justify="right")
    table.add_column("CPU ms/step\n" + ", ".join(variants), justify="right")
    for entry in result["sizes"]:
        over = [entry["over_grpc"][name] for name in variants[1:]]
        table.add_row(
            str(entry["frame_bytes"] // KIB),
            *(f"{entry['ms_per_step'][name]['median']:.2f}" for name in variants),
            *(f"{o['median']:.2f} ({o['min']:.2f} to {o['max']:.2f})" for o in over),
            ", ".join(f"{entry['cpu_ms_per_step'][name]:.1f}" for name in variants),
        )
    return table


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = by_size.parser("By the RPC, or by a data channel?", _SIZES_KIB, tensors=16)
    parser.add_argument(
        "--variants", nargs="+", choices=_ENVIRONMENT, default=["grpc", "shm", "beside"],
        help="grpc is the first",
    )  # fmt: skip
    args = by_size.parse(parser, argv)
    if min(args.sizes_kib) * KIB < 4 * args.tensors:
        parser.error(f"--sizes-kib must hold {args.tensors} numbers, got {min(args.sizes_kib)}")
    args.variants = ["grpc", *(name for name in args.variants if name != "grpc")]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; or 1 when a process failed or the frames did not take the way they should.
    """
    return by_size.run(parse(argv), measure, lambda console, result: console.print(render(result)))


if __name__ == "__main__":
    sys.exit(main())
