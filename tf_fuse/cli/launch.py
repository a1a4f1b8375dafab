# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse launch`; see `tf_fuse.cluster.launcher`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tf_fuse.cluster import launcher


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Launch what the command line says; return the exit status."""
    for name in ("ps", "max_restarts"):
        if getattr(args, name) < 0:
            option = "--" + name.replace("_", "-")
            parser.error(f"{option} must be 0 or more, got {getattr(args, name)}")
    if not Path(args.program).is_file():
        parser.error(f"{args.program}: no such file; launch starts a Python file")
    log_dir = Path(args.log_dir) if args.log_dir else launcher.default_log_dir()
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--log-dir {log_dir}: {error.strerror}")
    if not os.access(log_dir, os.W_OK):
        parser.error(f"--log-dir {log_dir}: this user may not write there")
    return launcher.launch(
        launcher.Job(
            command=[args.program, *args.arguments],
            workers=args.workers,
            ps=args.ps,
            log_dir=log_dir,
            max_restarts=args.max_restarts,
        )
    )
