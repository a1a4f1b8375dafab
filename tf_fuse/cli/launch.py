# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse launch`; see `tf_fuse.cluster.launcher`."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tf_fuse
from tf_fuse.cluster import end_limits, serve
from tf_fuse.cluster.launcher import local_job, platforms
from tf_fuse.cluster.launcher.platforms import task as platform_task
from tf_fuse.cluster.task_process import tf_config

_MAX_PORT = 65535
_OF_WHOLE_JOBS = ("hosts", "max_restarts")


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Launch what the command line says; return the exit status."""
    for name in ("port", "health_port", "ps", "max_restarts", "grace"):
        number, option = getattr(args, name), "--" + name.replace("_", "-")
        if number is not None and number < 0:
            parser.error(f"{option} must be 0 or more, got {number}")
        if name.endswith("port") and number is not None and number > _MAX_PORT:
            parser.error(f"{option} must be at most {_MAX_PORT}, got {number}")
    if args.health_address is not None and args.health_port is None:
        parser.error(f"--health-address {args.health_address} says where --health-port listens")
    if not Path(args.program).is_file():
        parser.error(f"{args.program}: no such file; launch starts a Python file")
    if args.grace is not None:
        end_limits.use(end_limits.current().with_program(args.grace))
    command = [args.program, *args.arguments]
    try:
        place = platforms.find_task(os.environ, args.workers, args.ps, args.port)
    except platforms.PlatformError as error:
        parser.error(str(error))
    if place is not None:
        for name in _OF_WHOLE_JOBS:
            if getattr(args, name):
                parser.error(
                    f"--{name.replace('_', '-')} is for a job that launch starts itself; "
                    f"{place.platform} says that this is one task of a job"
                )
    elif args.port is not None:
        parser.error(
            f"--port {args.port} is for tasks that Slurm or Kubernetes has started; launch chooses "
            "free ports for the tasks that it starts itself: leave out --port"
        )
    log_dir = _make_log_dir(args.log_dir, parser) if args.log_dir else None
    if place is not None:
        return _run_task(place, command, args, log_dir)
    hosts = _read_hosts(args.hosts, parser) if args.hosts else ()
    job = local_job.Job(
        command=command,
        workers=args.workers or 1,
        ps=args.ps or 0,
        log_dir=log_dir,
        max_restarts=args.max_restarts,
        hosts=hosts,
        health=_health(args, "127.0.0.1"),
        protocol=args.protocol,
    )
    return _run(lambda: local_job.launch(job), args.status_file)


def _make_log_dir(name: str, parser: argparse.ArgumentParser) -> Path:
    """Return a folder that exists, and that this user may write to."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--log-dir {folder}: {error.strerror}")
    if not os.access(folder, os.W_OK):
        parser.error(f"--log-dir {folder}: this user may not write there")
    return folder


def _health(args: argparse.Namespace, address: str) -> tuple[str, int] | None:
    """Return where probes are answered; None for nowhere.

    Args:
      args: of the command line.
      address: if that does not say one.
    """
    return None if args.health_port is None else (args.health_address or address, args.health_port)


def _run(job: Callable[[], int], status_file: str | None = None) -> int:
    """Return the status of a job; report an error that keeps it from starting.

    Args:
      job: runs it, and returns its status.
      status_file: where to write the status; None for nowhere.
    """
    try:
        status = job()
        for number in (signal.SIGINT, signal.SIGTERM):  # The status is that of the job.
            signal.signal(number, signal.SIG_IGN)
    except OSError as error:
        print(f"tf-fuse launch: error: {error.strerror or error}", file=sys.stderr, flush=True)
        taken = error.errno == errno.EADDRINUSE
        status = serve.EXIT_PORT_IN_USE if taken else serve.EXIT_START_FAILED
    if status_file:
        try:
            Path(status_file).write_text(f"{status}\n", encoding="ascii")
        except OSError as error:
            text = f"--status-file {status_file}: {error.strerror}"
            print(f"tf-fuse launch: error: {text}", file=sys.stderr, flush=True)
    return status


def _read_hosts(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the hosts of a file: one on each line, "#" begins a comment."""
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--hosts {name}: {getattr(error, 'strerror', None) or error}")
    hosts = [host for line in lines if (host := line.partition("#")[0].strip())]
    wrong = [host for host in hosts if not re.fullmatch(r"(?!-)([^\s@:]+@)?[^\s@:]+", host)]
    if wrong or not hosts:
        found = f"found {wrong[0]!r}" if wrong else "it has none"
        parser.error(f"--hosts {name}: expected host or user@host on each line; {found}")
    return hosts


def _run_task(
    place: platforms.PlatformTask,
    command: Sequence[str],
    args: argparse.Namespace,
    log_dir: Path | None,
) -> int:
    """Run one task of a job that a platform has started, and restarts."""
    name = f"{place.job}:{place.index}"
    said = f"task {name} of {place.cluster}, by {place.platform}"
    print(f"tf-fuse launch: {said}", flush=True)
    config = tf_config(place.cluster, place.job, place.index, args.protocol)
    health = _health(args, "0.0.0.0")
    if not place.is_server:
        return _run(
            lambda: platform_task.run_program(
                name, command, config, place.is_replica, health, log_dir
            ),
            args.status_file,
        )
    options = []
    if health is not None:
        options = ["--health-address", health[0], "--health-port", str(health[1])]
    if log_dir is not None:
        return _run(lambda: platform_task.run_server(name, options, config, log_dir))
    os.environ["TF_CONFIG"] = config
    tf_fuse._start()
    return serve.main(options)
