# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run jobs, each with processes of its own, and collect what they report."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.output import ProcessError
from examples import standalone

# What a mode is to `variant.py`: whether the plugin and its options are there, and whether the
# program itself gathers on servers.
MODES: Mapping[str, Mapping[str, Any]] = {
    "stock": {"mode": "stock", "gathers": False},
    "stock_gather": {"mode": "stock", "gathers": True},
    "all": {"mode": "all", "gathers": False},
}
# Stock's graphs under `grpc+fuse` with no option, where each receive is counted.
COUNT: Mapping[str, Any] = {"mode": "count", "gathers": False}
NO_MEMORY = 3
_VARIANT = Path(__file__).with_name("variant.py")


def run(settings: Mapping[str, Any], on_phase: Callable[[str], None]) -> dict[str, Any]:
    """Run one job.

    Args:
      settings: as `variant.py` takes them.
      on_phase: gets the name of each phase that begins.

    Returns:
      {"phases": {NAME: {"seconds", "peaks", ...}}}, and "error" where the machine's memory was too
      small.

    Raises:
      ProcessError: the job failed otherwise.
    """
    phases: dict[str, Any] = {}
    error = ""
    with tempfile.NamedTemporaryFile() as stderr:
        process = standalone.cluster_package().child_process.PipedProcess(settings["mode"])
        process.start(
            [sys.executable, str(_VARIANT), json.dumps(dict(settings))],
            {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"},
            Path(stderr.name),
        )
        try:
            for line in process.lines():
                if not line.startswith('{"event": '):
                    continue  # something a library printed
                event = json.loads(line)
                kind = event.pop("event")
                if kind == "begin":
                    on_phase(event["phase"])
                elif kind == "phase":
                    phases[event.pop("phase")] = event
                elif kind == "error":
                    error = event["text"] + "\n" + event.get("traceback", "")
        finally:
            # (Where this process is interrupted, too: its tasks end with it.)
            if sys.exc_info()[0] is not None:
                process.kill()
            status = process.wait()
        if status == NO_MEMORY:
            return {"phases": phases, "error": error.strip()}
        if status:
            stderr.seek(0)
            tail = stderr.read().decode(errors="replace")[-4000:]
            raise ProcessError(f"{settings['mode']} ended with {status}: {error}{tail}")
    return {"phases": phases}
