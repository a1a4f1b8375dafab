# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse explain REPORT.json`: where a program put its variables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tf_fuse.cli import json_output


def is_report(path: str) -> bool:
    """Whether a file is what `tf_fuse.parameter_server.placement_report` returns, as JSON."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return False
    return isinstance(data, dict) and {"imbalance", "servers", "variables"} <= data.keys()


def run(path: str, json_path: str | None) -> int:
    """Explains a report; returns the exit status.

    Args:
      path: where it was written to as JSON; `is_report` has said that it is one.
      json_path: where to write the report as JSON beside the tables; "-" for standard output, in
        place of them.

    Returns:
      0; or 1 when it was not to be had, or is damaged, said on standard error.
    """
    from tf_fuse.parameter_server.report import print_placement_report

    try:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        if json_output.write(data, json_path):
            return 0
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        print_placement_report(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        print(
            f"error: {path}: not what tf_fuse.parameter_server.placement_report() of this version "
            f"returns ({type(error).__name__}: {error}); write it with json.dump",
            file=sys.stderr,
        )
        return 1
    return 0
