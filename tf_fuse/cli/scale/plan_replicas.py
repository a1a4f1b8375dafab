# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse plan-cluster --replicas`: predict data-parallel replicas."""

from __future__ import annotations

import dataclasses
import os
from argparse import Namespace
from typing import Any

from rich.table import Table

from tf_fuse import _json_output
from tf_fuse._console import open_console
from tf_fuse.cli.scale.calibrate import DEFAULT_PATH

# A resource that is used for less of the time is not what the steps wait for.
_FULL = 0.75
# All replicas of a host are simulated, and all messages of a ring: more take many minutes.
_MOST_REPLICAS, _MOST_ON_HOST = 16_384, 128


def run(args: Namespace) -> None:
    """Predict, print and write.

    Args:
      args: model, replicas, hosts, one_host, link, cores, batch, rates, json; sweep and plot have
        to be empty.

    Raises:
      ScaleError: an argument cannot be used.
    """
    from tf_fuse.cli.load import model as load_model
    from tf_fuse.scale import prediction
    from tf_fuse.scale.errors import ScaleError
    from tf_fuse.scale.rates import load_collectives
    from tf_fuse.scale.replicas import job

    rates = load_collectives(os.path.expanduser(args.rates or DEFAULT_PATH))
    link = prediction.Link.from_text(args.link)
    if args.sweep or args.plot:
        raise ScaleError("--sweep and --plot try numbers of servers, and --replicas have none")
    if args.one_host and args.hosts not in (None, 1):
        raise ScaleError(f"--one-host is one host, and --hosts {args.hosts} are more")
    hosts = 1 if args.one_host else args.hosts or args.replicas
    if args.replicas > _MOST_REPLICAS:
        raise ScaleError(
            f"--replicas {args.replicas} are too many to simulate, {_MOST_REPLICAS} at most"
        )
    if (here := -(-args.replicas // hosts)) > _MOST_ON_HOST:
        raise ScaleError(
            f"--replicas {args.replicas} on --hosts {hosts} are {here} on a host, {_MOST_ON_HOST} "
            "at most; name more hosts"
        )
    setting = job.Setting(args.replicas, hosts, args.cores, link.bytes_per_s, link.seconds)
    step = load_model.load_replica(args.model, args.batch)
    rows = [(job.RING, "stock"), *((one, mode) for mode in job.MODES[1:] for one in _ALGORITHMS)]
    found = {
        (mode, algorithm): job.simulate(
            step, mode, rates, dataclasses.replace(setting, algorithm=algorithm)
        )
        for algorithm, mode in rows
    }
    content = {
        "model": args.model,
        "link": args.link,
        "setting": dataclasses.asdict(setting),
        "step": dataclasses.asdict(step),
        "modes": {
            f"{mode}, {algorithm}": {**dataclasses.asdict(one), "bottleneck": bottleneck(one)}
            for (mode, algorithm), one in found.items()
        },
    }
    if not _json_output.write(content, args.json):
        _print(args, hosts, step, found)


_ALGORITHMS = ("ring", "direct")


def bottleneck(found: Any) -> str:
    """Return what keeps steps from being faster."""
    name, share = _busiest(found)
    if share >= _FULL:
        return f"the {name} of a host ({share:.0%} busy)"
    return f"nothing is full: the path of a step (the {name} {share:.0%} busy)"


def _busiest(found: Any) -> tuple[str, float]:
    """Return what is busiest of a host, and how much of the time."""
    return max((("cores", found.cores_busy), ("link", found.link_busy)), key=lambda one: one[1])


def _print(args: Namespace, hosts: int, step: Any, found: dict[tuple[str, str], Any]) -> None:
    console = open_console()
    console.print(
        f"{args.model}: {args.replicas} replicas on {hosts} hosts of {args.cores:g} cores, "
        f"{args.link}; {step.weight_bytes / 1e6:.1f} MB of weights (predicted)",
        highlight=False,
    )
    table = Table()
    for name in ("", "ms per step", "over stock", "exchanging", "CPU ms", "MB a host sends",
                 "busiest"):  # fmt: skip
        is_text = name in ("", "busiest")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not name)
    stock = found["stock", "ring"].step_s
    for (mode, algorithm), one in found.items():
        table.add_row(
            f"{mode}, {algorithm}",
            f"{1e3 * one.step_s:.2f}",
            f"{stock / one.step_s:.2f}",
            f"{one.collective_share:.0%}",
            f"{1e3 * one.cpu_s:.2f}",
            f"{one.sent_bytes / 1e6:.2f}",
            "{} {:.0%}".format(*_busiest(one)),
        )
    console.print(table)
    (mode, algorithm), best = min(found.items(), key=lambda one: one[1].step_s)
    console.print(
        f"recommended: {mode}, {algorithm}: {1e3 * best.step_s:.2f} ms per step; limit: "
        f"{bottleneck(best)}",
        highlight=False,
    )
