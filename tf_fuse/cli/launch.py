# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse launch`; see `tf_fuse.cluster.launcher` and `tf_fuse.cluster.platforms`."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import tf_fuse
from tf_fuse.cluster import launcher, log_follower, platforms, serve
from tf_fuse.cluster.task_process import tf_config

_MAX_PORT = 65535


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Launch what the command line says; return the exit status."""
    if args.port is not None and args.port > _MAX_PORT:
        parser.error(f"--port must be at most {_MAX_PORT}, got {args.port}")
    for name in ("ps", "max_restarts"):
        if getattr(args, name) < 0:
            option = "--" + name.replace("_", "-")
            parser.error(f"{option} must be 0 or more, got {getattr(args, name)}")
    if not Path(args.program).is_file():
        parser.error(f"{args.program}: no such file; launch starts a Python file")
    command = [args.program, *args.arguments]
    hosts = _read_hosts(args.hosts, parser) if args.hosts else ()
    try:
        place = platforms.find_place(os.environ, args.workers, args.ps, args.port)
    except platforms.PlatformError as error:
        parser.error(str(error))
    if place is not None and args.max_restarts:
        parser.error(f"--max-restarts: {place.platform}, not launch, starts this job's tasks again")
    if place is not None:
        return _run_task(place, command, args)
    log_dir = Path(args.log_dir) if args.log_dir else log_follower.default_log_dir()
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--log-dir {log_dir}: {error.strerror}")
    if not os.access(log_dir, os.W_OK):
        parser.error(f"--log-dir {log_dir}: this user may not write there")
    return launcher.launch(
        launcher.Job(
            command=command,
            workers=args.workers or 1,
            ps=args.ps,
            log_dir=log_dir,
            max_restarts=args.max_restarts,
            hosts=hosts,
        )
    )


def _read_hosts(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the hosts of a file: one on each line, "#" begins a comment."""
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--hosts {name}: {getattr(error, 'strerror', None) or error}")
    hosts = [host for line in lines if (host := line.partition("#")[0].strip())]
    wrong = [host for host in hosts if len(host.split()) > 1 or host.startswith("-")]
    if wrong or not hosts:
        found = f"found {wrong[0]!r}" if wrong else "it has none"
        parser.error(f"--hosts {name}: expected host or user@host on each line; {found}")
    return hosts


def _run_task(place: platforms.Place, command: Sequence[str], args: argparse.Namespace) -> int:
    """Run one task of a job that a platform has started, and restarts."""
    said = f"task {place.job}:{place.index} of {place.cluster}, by {place.platform}"
    print(f"tf-fuse launch: {said}", flush=True)
    config = tf_config(place.cluster, place.job, place.index, serve.FUSED_PROTOCOL)
    if args.lifeline_fd is not None:
        serve.watch_lifeline(args.lifeline_fd, lambda: os.kill(os.getpid(), signal.SIGTERM))
    if not place.is_server:
        return launcher.run_program(command, config)
    os.environ["TF_CONFIG"] = config
    options = []
    if args.health_port is not None:
        options = ["--health-port", str(args.health_port), "--health-address", "0.0.0.0"]
    tf_fuse._start()
    return serve.main(options)
