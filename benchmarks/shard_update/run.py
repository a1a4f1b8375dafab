# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the update of the weights takes: whole on each replica, sharded over them, and in PyTorch.

    python benchmarks/shard_update/run.py --model mlp --optimizer adam --replicas 2 --json mlp.json
    python benchmarks/shard_update/run.py --model transformer --replicas 4 --modes stock,sharded
    python benchmarks/shard_update/run.py --model ncf --gloo-python venv/bin/python --plot ncf.svg

Each mode has processes of its own, one per replica, which stay warm and are idle while others run;
every round runs all modes, one after the other. All begin with the same weights and take the same
batches; the losses of TensorFlow's modes are compared with those of `stock`, bit by bit.

* `stock`: MultiWorkerMirroredStrategy with the protocol `grpc`; the plugin is not loaded.
* `unsharded`: the same with `grpc+fuse`, and no option.
* `unsharded_fused`: with `fuse_weight_update`: each update is done by one operation.
* `sharded`: with the option `shard_weight_update`, which has each update done by one operation.
* `sharded_first_use`: with `shard_weight_update_gather="first_use"` too.
* `sharded_unfused`: with `shard_weight_update`, and `fuse_weight_update` off.
* `sharded_compiled`: with `shard_weight_update` and `compile_weight_update`.
* `ddp`: PyTorch's DistributedDataParallel on gloo, with its fused optimizer.
* `zero`: that with ZeroRedundancyOptimizer.

`unsharded_fused`, `sharded_first_use` and `sharded_unfused` only run if --modes names them. What
sharding saves is relative to the mode that does the same but for sharding: for `sharded` and
`sharded_first_use` that is `unsharded_fused`, for `sharded_unfused` it is `unsharded`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

import psutil
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from benchmarks.collectives import run as collectives
from benchmarks.collectives.options import listed
from benchmarks.common import link, output
from benchmarks.common.rank_group import LOOPBACK, Network, RankError
from benchmarks.fuse_recv.results import machine
from benchmarks.shard_update import models, results
from benchmarks.shard_update.modes import MODES, ModeGroup, Round, why_no_torch
from examples.progress import display, open_console
from examples.two_hosts import TwoHostsError

_DEFAULT_MODES = ("stock", "unsharded", "sharded", "sharded_compiled", "ddp", "zero")
_SETTINGS = ("group_size", "rounds", "steps", "warm_up", "learning_rate", "sizes", "parameters")
_EXIT_INTERRUPTED = 130  # as a shell says it of Ctrl-C
# In memory_needed: of a process without a model; and in terms of all weights of the model, what an
# idle process holds (it keeps what it once had), and more of one that is at work. Measured with
# mlp and adam.
_PROCESS_BYTES, _HELD, _AT_WORK = 250 << 20, 6, 4


class NoModeError(RuntimeError):
    """None of the modes can be had here."""


def memory_needed(parameters: int, replicas: int, modes: int) -> int:
    """Bytes that all processes hold at most; an estimate.

    Args:
      parameters: of the model.
      replicas: of each mode.
      modes: how many.
    """
    size = 4 * parameters
    return replicas * (modes * (_PROCESS_BYTES + _HELD * size) + _AT_WORK * size)


def measure(
    args: argparse.Namespace, console: Console, progress: Progress, network: Network = LOOPBACK
) -> dict[str, Any]:
    """Run all modes in turn.

    Args:
      args: the command line.
      console: shows modes that do not run here.
      progress: gets a task.
      network: where the replicas run.

    Returns:
      What `--json` writes.

    Raises:
      RankError: a replica failed.
      NoModeError: no mode is left.
    """
    bar = progress.add_task("starting", total=len(args.modes) * (1 + args.rounds))
    with contextlib.ExitStack() as stack:
        groups = _started(args, stack, console, progress, bar, network)
        rounds = _rounds(args, groups, progress, bar)
        finished = {group.name: group.finish() for group in groups}
    progress.update(bar, description="done", completed=len(args.modes) * (1 + args.rounds))
    return {
        "model": args.model,
        "optimizer": args.optimizer,
        "replicas": args.replicas,
        "modes": {name: results.entry(rounds[name], finished[name]) for name in finished},
        "ratio": results.ratios(rounds),
        "losses_compared": results.compared(finished),
        "estimates": results.estimates(rounds, finished),
        "settings": {key: getattr(args, key) for key in _SETTINGS},
        "machine": machine(),
    }


def _started(
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
    console: Console,
    progress: Progress,
    bar: Any,
    network: Network,
) -> list[ModeGroup]:
    """Start the modes one after the other, as each wants all cores; return those that run, warm."""
    keys = ("model", "sizes", "optimizer", "learning_rate", "group_size")
    spec = {key: getattr(args, key) for key in keys}
    groups = []
    for name in args.modes:
        progress.update(bar, description=f"starting {name}")
        group = ModeGroup(name, args.gloo_python, args.replicas, args.timeout, spec, network)
        stack.callback(group.close)
        group.wait_ready()
        progress.update(bar, description=f"first steps of {name}")
        if reason := group.build(args.warm_up):
            output.say(console, f"not available: {name}: {reason}")
            group.close()
        else:
            groups.append(group)
        progress.advance(bar)
    if not groups:
        raise NoModeError("none of the modes is available")
    return groups


def _rounds(
    args: argparse.Namespace, groups: Sequence[ModeGroup], progress: Progress, bar: Any
) -> dict[str, list[Round]]:
    """All rounds; every other goes through the modes backwards."""
    rounds: dict[str, list[Round]] = {group.name: [] for group in groups}
    for number in range(args.rounds):
        for group in groups if number % 2 == 0 else reversed(groups):
            text = f"round {number + 1} of {args.rounds}: {group.name}"
            progress.update(bar, description=escape(text))
            rounds[group.name].append(group.round(args.steps))
            progress.advance(bar)
    return rounds


def _sizes(args: argparse.Namespace) -> dict[str, int]:
    given = {}
    for word in (word for text in args.size for word in text.split(",") if word):
        name, _, value = word.partition("=")
        if not value.isdecimal():
            raise ValueError(f"--size takes NAME=NUMBER, got {word!r}")
        given[name] = int(value)
    for name in ("batch", "layers", "width"):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    return models.sizes_of(args.model, given)


def _mode(word: str) -> str:
    if word not in MODES:
        raise ValueError(f"--modes takes {', '.join(MODES)}; got {word!r}")
    return word


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare updates of the weights in training.")
    several: dict[str, Any] = {"nargs": "+", "metavar": "X"}
    parser.add_argument("--model", choices=models.MODELS, default="mlp")
    parser.add_argument("--optimizer", choices=sorted(models.OPTIMIZERS), default="adam")
    parser.add_argument("--replicas", type=int, default=2, help="processes, at least 2")
    parser.add_argument("--modes", **several, default=[",".join(_DEFAULT_MODES)],
                        help=f"of {', '.join(MODES)}")  # fmt: skip
    parser.add_argument("--group-size", type=int, default=0,
                        help="replicas that share one copy of the state; 0: all")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="per round")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first round")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, help="of a replica")
    parser.add_argument("--layers", type=int, help="of the model mlp")
    parser.add_argument("--width", type=int, help="of the model's layers")
    parser.add_argument("--size", **several, default=[],
                        help="NAME=NUMBER, of the model; a wrong name lists them all")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=300.0,
                        help="seconds that a start, a build or a round may take")  # fmt: skip
    parser.add_argument("--gloo-python", metavar="PATH",
                        help="an interpreter that has PyTorch; this one by default")  # fmt: skip
    link.add_options(parser, "the second half of the replicas")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    try:
        args.modes = listed(args.modes, _mode)
        args.sizes = _sizes(args)
    except ValueError as e:
        parser.error(str(e))
    if not args.modes:
        parser.error("--modes names nothing")
    if reason := link.settle(args):
        parser.error(reason)
    for name, least in (("replicas", 2), ("rounds", 1), ("steps", 1), ("warm_up", 1),
                        ("timeout", 1), ("group_size", 0)):  # fmt: skip
        value = getattr(args, name)
        if not value >= least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {value:g}")
    if not 0 < args.learning_rate < float("inf"):
        parser.error(f"--learning-rate must be positive and finite, got {args.learning_rate:g}")
    if args.gloo_python and not _of_torch(args):
        parser.error(f"--gloo-python {args.gloo_python} is of no use: --modes lacks ddp and zero")
    args.parameters = models.parameter_count(args.model, args.sizes)
    return args


def _of_torch(args: argparse.Namespace) -> list[str]:
    return [name for name in args.modes if MODES[name].backend == "torch"]


def settle_torch(args: argparse.Namespace, console: Console) -> str | None:
    """Leave PyTorch's modes out where it is not installed.

    Returns:
      None; or why the command cannot run, when an interpreter was named that cannot do it, or
      nothing is left.
    """
    if not (modes := _of_torch(args)):
        return None
    named, args.gloo_python = args.gloo_python, args.gloo_python or sys.executable
    reason = why_no_torch(args.gloo_python)
    if reason is None:
        return None
    if named or modes == args.modes:
        return f"no PyTorch on gloo in {reason}"
    args.modes = [name for name in args.modes if name not in modes]
    output.say(console, f"not available: {', '.join(modes)}: {reason}")
    return None


def _too_large(args: argparse.Namespace) -> str | None:
    needed = memory_needed(args.parameters, args.replicas, len(args.modes))
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return (
        f"{args.replicas} replicas in {len(args.modes)} modes need about {needed / 2**30:.1f} GiB "
        f"of memory, and {free / 2**30:.1f} are available; take fewer --modes or --replicas, or "
        "another --size"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; 1 when a replica failed, or a mode that must have the losses of stock has others; 2 for a
      command line that cannot be run; 77 where there can be no network namespaces; 130 when it was
      interrupted.
    """
    args = parse(argv)
    console = open_console()
    if reason := settle_torch(args, console):
        print(f"error: --gloo-python: {reason}", file=sys.stderr)
        return 2
    if reason := _too_large(args):
        print(f"error: {reason}", file=sys.stderr)
        return 2
    if reason := link.why_not(args):
        print(f"skipped: {reason}", file=sys.stderr)
        return link.EXIT_SKIPPED
    try:
        with (
            collectives.interrupted_once(),
            link.joined(args, functools.partial(output.say, console)) as (hosts, of_link),
            display(console) as progress,
        ):
            result = {**measure(args, console, progress, link.of_ranks(hosts)), **of_link}
    except (RankError, NoModeError, TwoHostsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: all replicas have been ended", file=sys.stderr)
        return _EXIT_INTERRUPTED
    return report(result, args, console)


def report(result: dict[str, Any], args: argparse.Namespace, console: Console) -> int:
    """Print and write a result; return the command's status."""
    console.print(results.render(result))
    for name, found in result["estimates"].items():
        output.say(console, results.expected(name, found))
    wrong = False
    for name, found in result["losses_compared"].items():
        output.say(console, results.verdict(name, found, len(result["modes"][name]["losses"])))
        wrong |= MODES[name].same_bits and not found["equal"]
    output.write(result, args, functools.partial(output.say, console), results.plot)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
