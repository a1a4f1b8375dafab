# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `large_tensors.py` and `frame_paths.py` share: variants of one fused receive, size by size.

A worker reads several equal tensors from a server in one fused receive. All variants take turns,
for one size after the other, and counters tell which way the tensors went.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import Progress

from examples import compare
from examples.progress import display, open_console
from examples.session import Session, SessionError

KIB = 1024
# So many bytes per round, that small sizes are not lost in noise and large ones end some day.
_ROUND_BYTES = 512 << 20

Rounds = Mapping[str, Sequence[Mapping[str, Any]]]


class WrongPathError(RuntimeError):
    """A variant's tensors did not travel the way that its name says."""


def steps_per_round(frame_bytes: int) -> int:
    """Return the number of steps that move about `_ROUND_BYTES`, but at least 5 and at most 100."""
    return max(5, min(100, _ROUND_BYTES // frame_bytes))


def parser(description: str, sizes_kib: Sequence[int], tensors: int) -> argparse.ArgumentParser:
    """Return a command line with the options of both, and their defaults."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--sizes-kib", type=int, nargs="+", default=list(sizes_kib))
    made.add_argument("--tensors", type=int, default=tensors, help="per fused receive, at least 2")
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--steps", type=int, help="per round; chosen by size when not given")
    made.add_argument("--json", type=Path, help="write all numbers here")
    return made


def parse(made: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Read a command line of `parser`; sizes are in order, and none is there twice."""
    args = made.parse_args(argv)
    if args.tensors < 2:
        made.error(f"--tensors must be at least 2, got {args.tensors}: one is never fused")
    args.sizes_kib = sorted(set(args.sizes_kib))
    return args


def measure(
    args: argparse.Namespace,
    progress: Progress,
    environments: Mapping[str, Mapping[str, str]],
    check: Callable[[str, int, Mapping[str, Mapping[str, Any]]], None],
    row: Callable[[int, int, Rounds], dict[str, Any]],
    whole_frames: bool = False,
    fuse_options: Mapping[str, Any] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Run all variants in turn, for one size after the other.

    Args:
      args: of `parse`.
      progress: gets a task per size and variant.
      environments: variant to the variables of its processes.
      check: gets a variant, the size in bytes, and task to counters, as
        `tf_fuse.cluster_metrics`; raises WrongPathError.
      row: makes the result of a size in bytes, steps per round, and variant to `Round.as_dict()`
        of each round.
      whole_frames: whether a size is that of all tensors together; else it is that of each.
      fuse_options: further options of fuse_recv.

    Returns:
      The rows, by growing size.

    Raises:
      SessionError: a process failed.
      WrongPathError: of `check`.
    """
    rows = []
    for size_kib in args.sizes_kib:
        size = size_kib * KIB
        frame_bytes = size if whole_frames else size * args.tensors
        steps = args.steps or steps_per_round(frame_bytes)
        spec = {
            "mode": "fused",
            "workload": "large",
            "options": {"tensors": args.tensors, "tensor_bytes": frame_bytes // args.tensors},
            "fuse_options": dict(fuse_options),
        }
        variants = {
            f"{name} {size_kib} KiB": compare.Variant(spec, environment)
            for name, environment in environments.items()
        }

        def check_session(label: str, session: Session, size: int = size) -> None:
            check(label.split()[0], size, session.metrics())

        rounds, _ = compare.run_in_turn(variants, args.rounds, steps, progress, check_session)
        rows.append(row(size, steps, {label.split()[0]: r for label, r in rounds.items()}))
    return rows


def numbers(steps: int, rounds: Rounds) -> dict[str, Any]:
    """Return what every row has.

    Args:
      steps: per round.
      rounds: variant to `Round.as_dict()` of each round.

    Returns:
      steps, ms_per_step {variant: {median, min, max}}, and cpu_ms_per_step {variant: all tasks
      together}.
    """
    cpu = {name: compare.summarize(of)["cpu_ms_per_step"] for name, of in rounds.items()}
    return {
        "steps": steps,
        "ms_per_step": {name: compare.spread(_ms(of)) for name, of in rounds.items()},
        "cpu_ms_per_step": {name: by["worker"] + by["ps"] for name, by in cpu.items()},
    }


def ratio(rounds: Rounds, variant: str, base: str) -> dict[str, float]:
    """Median, minimum and maximum over the rounds of one's time by another's: below 1, it wins."""
    return compare.spread(
        a / b for a, b in zip(_ms(rounds[variant]), _ms(rounds[base]), strict=True)
    )


def _ms(rounds: Sequence[Mapping[str, Any]]) -> list[float]:
    return [1e3 / r["steps_per_s"] for r in rounds]


def run(
    args: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Progress], dict[str, Any]],
    show: Callable[[Console, Mapping[str, Any]], None],
) -> int:
    """Measures, prints the result, and writes it where `--json` says.

    Returns:
      0; or 1 when a process failed or the tensors did not take the way they should.
    """
    console = open_console()
    try:
        with display(console) as progress:
            result = measure(args, progress)
    except (SessionError, WrongPathError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    show(console, result)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"all numbers: {args.json}", highlight=False)
    return 0
