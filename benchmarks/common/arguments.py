# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of command lines that several benchmarks have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from examples.wide_deep.data import criteo
from examples.wide_deep.data.common import DataError


def check_counts(
    parser: argparse.ArgumentParser, args: argparse.Namespace, keys: Iterable[str]
) -> None:
    """End with an error if one of some arguments is below 1."""
    for key in keys:
        if getattr(args, key) < 1:
            parser.error(f"--{key.replace('_', '-')} must be at least 1, got {getattr(args, key)}")


def check_criteo(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Make the path in `data` absolute; end with an error if it is not in Criteo's format."""
    if not args.data:
        return
    try:
        next(criteo.read(args.data))
    except DataError as error:
        parser.error(str(error))
    args.data = os.path.abspath(args.data)
