# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a collective takes: stock TensorFlow, ours, and PyTorch's gloo, in turn.

    python benchmarks/collectives/run.py --op all_reduce --ranks 2,4 --json all_reduce.json
    python benchmarks/collectives/run.py --op rs_ag --ranks 2 --sizes 16MB --paths shm,grpc
    python benchmarks/collectives/run.py --op all_reduce --ranks 2 --gloo-python venv/bin/python
    python benchmarks/collectives/run.py --ranks 2 --hosts 2 --mbit 1000 --plot 1g.svg

Each variant has processes of its own, one per rank, which stay warm and are idle while others run;
every round runs all ops and variants, one after the other. What each op returns is checked before
any is timed. Sizes are those of the whole tensor, of float32. `reduce_scatter` and `all_gather` are
the halves of `rs_ag`, whose result is that of `all_reduce`.

With `--hosts 2` the ranks are dealt to two network namespaces of this machine (root is needed), as
`examples/two_hosts.py` makes them; they are removed however the command ends.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

import psutil
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from benchmarks.collectives import results
from benchmarks.collectives.options import PATHS, parse
from benchmarks.common import link, output, rank_group
from benchmarks.common.rank_group import (
    LOOPBACK,
    Measurement,
    Network,
    RankError,
    RankGroup,
    Variant,
)
from benchmarks.fuse_recv.results import machine
from examples.progress import display, open_console
from examples.two_hosts import TwoHostsError

_PROTOCOL = "grpc+fuse"
_SETTINGS = ("op", "ranks", "sizes", "rounds", "large_rounds", "variants", "paths", "hosts")
# So many bytes per round, that small sizes are not lost in noise and large ones end some day.
_ROUND_BYTES = 128 << 20
_LARGE_BYTES = 256 << 20
_EXIT_INTERRUPTED = 130  # as a shell says it of Ctrl-C
# In memory_needed: whole tensors that an idle rank holds (TensorFlow keeps what it once had), and
# more of one that is at work. Measured with 256MB; what stock takes, which is most.
_HELD, _HELD_BY_OP, _AT_WORK = 2.0, 0.5, 3.0
_GLOO_PROBE = "import torch.distributed as d; assert d.is_gloo_available(), 'built without gloo'"

Rounds = dict[str, dict[str, list[Measurement]]]  # by op and variant


class WrongPathError(RuntimeError):
    """A variant's bytes did not take the data path that its name says."""


def calls_per_round(size: int) -> int:
    """Return the number of calls that move about `_ROUND_BYTES`, but at least 2 and at most 100."""
    return max(2, min(100, _ROUND_BYTES // size))


def variants(args: argparse.Namespace) -> list[Variant]:
    """Return the variants of a command line, in the order of the first round."""
    ours = [
        Variant("tf_fuse", protocol=_PROTOCOL)
        if path == PATHS[0]
        else Variant(f"tf_fuse[{path}]", protocol=_PROTOCOL, path=path)
        for path in args.paths
    ]
    known = {
        "stock": [Variant("stock")],
        "tf_fuse": ours,
        "gloo": [Variant("gloo", backend="gloo", python=args.gloo_python)],
    }
    return [variant for name in args.variants for variant in known[name]]


def why_no_gloo(python: str) -> str | None:
    """Why an interpreter has no gloo; None when it has."""
    return rank_group.why_not(python, _GLOO_PROBE)


def check_path(variant: Variant, measurement: Measurement, apart: bool = False) -> None:
    """Check that a variant which allows one data path used no other.

    Args:
      variant: what ran.
      measurement: of one round.
      apart: no two ranks are on one host, so none can share memory.

    Raises:
      WrongPathError: bytes went another way, or none at all went this one; or went through memory
        that nobody can share.
    """
    moved = {
        path: measurement.counters[f"collective_bytes_{path}"]
        for path in (*PATHS, "stock")
        if f"collective_bytes_{path}" in measurement.counters
    }
    if apart and moved.get("shm"):
        raise WrongPathError(
            f"variant {variant.name}: bytes by data path are {moved}, expected none by shm: each "
            "rank has a host of its own."
        )
    if variant.path is None or not moved:
        return
    if any((path == variant.path) != (count > 0) for path, count in moved.items()):
        raise WrongPathError(
            f"variant {variant.name}: bytes by data path are {moved}, expected some by "
            f"{variant.path} and none by another; does the library read TF_FUSE_COLLECTIVE_PATHS? "
            f"It was {variant.path}."
        )


def memory_needed(size: int, ranks: int, count: int, ops: int) -> int:
    """Bytes that all processes hold at most, beyond what they take for small tensors; an estimate.

    Args:
      size: of the whole tensor.
      ranks: of each variant.
      count: of variants; all hold their tensors, and one of them runs.
      ops: that are prepared at the same time.
    """
    return int(ranks * size * ((_HELD + _HELD_BY_OP * ops) * count + _AT_WORK))


def measure(
    args: argparse.Namespace, console: Console, progress: Progress, net: Network = LOOPBACK
) -> dict[str, Any]:
    """Run all variants in turn, for one number of ranks and one size after the other.

    Args:
      args: the command line.
      console: shows ops that a variant lacks, and sizes that memory does not hold.
      progress: gets a task per number of ranks.
      net: where the ranks run.

    Returns:
      What `--json` writes.

    Raises:
      RankError: a rank failed, or returned wrong values.
      WrongPathError: see `check_path`.
    """
    rows: list[dict[str, Any]] = []
    for ranks in args.ranks:
        total = sum(rounds_of(args, size) for size in args.sizes)
        bar = progress.add_task(f"{ranks} ranks: starting", total=total)

        def say(text: str, bar: Any = bar, ranks: int = ranks) -> None:
            progress.update(bar, description=escape(f"{ranks} ranks: {text}"))

        with contextlib.ExitStack() as stack:
            groups = [
                stack.enter_context(RankGroup(variant, ranks, args.timeout, net))
                for variant in variants(args)
            ]
            for group in groups:
                group.wait_ready()
            for size in args.sizes:
                advance = functools.partial(progress.advance, bar)
                if reason := _too_large(args, size, ranks):
                    output.say(console, f"left out: {reason}")
                    advance(rounds_of(args, size))
                    continue
                lacking = _prepare(args, groups, size, say)
                for text in lacking.values():
                    output.say(console, f"left out: {text}")
                rounds = _rounds(args, groups, size, lacking, say, advance)
                rows += _rows(ranks, size, rounds)
                for group in groups:
                    group.release()
            say("done")
    return {
        "settings": {key: getattr(args, key) for key in _SETTINGS},
        "machine": machine(),
        "rows": rows,
    }


def rounds_of(args: argparse.Namespace, size: int) -> int:
    """How many rounds a size has."""
    return args.large_rounds if args.large_rounds and size >= _LARGE_BYTES else args.rounds


def _too_large(args: argparse.Namespace, size: int, ranks: int) -> str | None:
    """Why a size is left out; None when memory holds it."""
    needed = memory_needed(size, ranks, len(variants(args)), len(args.op))
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return (
        f"{ranks} ranks, {results.size_name(size)}: about {needed / 2**30:.1f} GiB of memory are "
        f"needed, and {free / 2**30:.1f} are available; take fewer --variants, --paths or --ranks"
    )


def _prepare(
    args: argparse.Namespace, groups: Sequence[RankGroup], size: int, say: Callable[[str], None]
) -> dict[tuple[str, str], str]:
    """Build and check the ops; return why, by variant and op, for those that do not exist."""
    lacking = {}
    for group in groups:
        name = group.variant.name
        say(f"{results.size_name(size)}, checking {name}")
        for op, reason in group.prepare(args.op, size).items():
            lacking[name, op] = f"{name} {op}, {results.size_name(size)}: {reason}"
    return lacking


def _rounds(
    args: argparse.Namespace,
    groups: Sequence[RankGroup],
    size: int,
    lacking: Mapping[tuple[str, str], str],
    say: Callable[[str], None],
    advance: Callable[[], None],
) -> Rounds:
    """All rounds of one size; every other goes through ops and variants backwards."""
    rounds: Rounds = {op: {group.variant.name: [] for group in groups} for op in args.op}
    turns = [(op, group) for op in args.op for group in groups]
    turns = [turn for turn in turns if (turn[1].variant.name, turn[0]) not in lacking]
    calls = args.calls or calls_per_round(size)
    count = rounds_of(args, size)
    for number in range(count):
        for op, group in turns if number % 2 == 0 else reversed(turns):
            name = group.variant.name
            say(f"{results.size_name(size)}, round {number + 1} of {count}: {op}, {name}")
            measurement = group.measure(op, calls)
            check_path(group.variant, measurement, group.apart)
            rounds[op][name].append(measurement)
        advance()
    return {op: {name: of for name, of in by.items() if of} for op, by in rounds.items()}


def _rows(ranks: int, size: int, rounds: Rounds) -> Iterable[dict[str, Any]]:
    for op, by_variant in rounds.items():
        if not by_variant:
            continue
        entry = results.row(op, ranks, size, by_variant)
        if op != "all_reduce" and (over := results.over_all_reduce(rounds, op)):
            entry["over_all_reduce"] = over
        yield entry


def settle_gloo(args: argparse.Namespace, console: Console) -> str | None:
    """Leave gloo out where PyTorch is not installed.

    Returns:
      None; or why the command cannot run, when an interpreter was named that has no gloo.
    """
    if "gloo" not in args.variants:
        return None
    named, args.gloo_python = args.gloo_python, args.gloo_python or sys.executable
    reason = why_no_gloo(args.gloo_python)
    if reason is None:
        return None
    if named or args.variants == ["gloo"]:
        return f"no gloo in {reason}"
    args.variants = [name for name in args.variants if name != "gloo"]
    output.say(console, f"left out: gloo, {reason}")
    return None


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """SIGTERM is as Ctrl-C, and while things are cleaned up after one, another is ignored."""

    def interrupt(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    for each in before:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; 1 when a rank failed, returned wrong values, or took another data path than it should; 2
      for a command line that cannot be run; 77 where there can be no network namespaces; 130 when
      it was interrupted.
    """
    args = parse(argv)
    console = open_console()
    if reason := settle_gloo(args, console):
        print(f"error: --gloo-python: {reason}", file=sys.stderr)
        return 2
    try:
        with interrupted_once():
            if reason := link.why_not(args):
                print(f"skipped: {reason}", file=sys.stderr)
                return link.EXIT_SKIPPED
            with (
                link.joined(args, functools.partial(output.say, console)) as (hosts, of_link),
                display(console) as progress,
            ):
                net = link.of_ranks(hosts)
                result = {**measure(args, console, progress, net), **of_link}
    except (RankError, WrongPathError, TwoHostsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: all ranks have been ended", file=sys.stderr)
        return _EXIT_INTERRUPTED
    console.print(results.render(result))
    output.write(result, args, functools.partial(output.say, console), results.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
