# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write this process's report into the folder that TF_FUSE_REPORT_DIR names, again and again.

A task ends when it is killed, as a rule. So a thread writes while it runs, at first soon and then
every ten seconds, and Python once more at the end.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import logging
import os
import tempfile
import threading
from pathlib import Path

from tf_fuse.report.collect import own_task, report_of_job, report_of_process
from tf_fuse.report.json_form import as_json
from tf_fuse.report.merge import merge
from tf_fuse.report.records.model import Report
from tf_fuse.report.records.parts import short
from tf_fuse.report.steps import recording

VARIABLE = "TF_FUSE_REPORT_DIR"
_FIRST_S, _MOST_S = 1.0, 10.0
_log = logging.getLogger("tf_fuse")


class FolderWriter:
    """Writes the report of this process into a folder.

    Attributes:
      folder: where.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = threading.Lock()
        self._failed = False
        self._path: Path | None = None
        self._last: Report | None = None

    def start(self) -> None:
        """Write from a thread of its own, which ends with the process."""
        threading.Thread(target=self._run, name="tf_fuse report", daemon=True).start()
        atexit.register(self.write)

    def write(self) -> Path | None:
        """Write now.

        Returns:
          The file; None if there is nothing to report, or it cannot be written, which is logged
          once.
        """
        with self._lock:
            try:
                return self._write()
            except Exception as error:  # A report must not stop the training.
                if not self._failed:
                    _log.warning(
                        "%s: no report is written into %s: %s: %s",
                        VARIABLE, self.folder, type(error).__name__, error,
                    )  # fmt: skip
                self._failed = True
                return None

    def _write(self) -> Path | None:
        task = own_task()
        is_coordinator = bool(recording.cluster_addresses()) and "/job:chief/" in task
        timeline = recording.last_timeline()
        report = report_of_job(timeline=timeline) if is_coordinator else report_of_process(timeline)
        if not _has_something(report):
            return None
        if self._last is not None:
            # (The others may have ended: what they had said stays.)
            report = dataclasses.replace(merge([self._last, report]), notes=report.notes)
        self._last = report
        self.folder.mkdir(parents=True, exist_ok=True)
        name = short(task).replace(":", "_")
        if "/job:localhost/" in task:
            name += f"_{os.getpid()}"
        path = self.folder / f"{name}.json"
        # (It had another name before it was connected.)
        if self._path is not None and self._path != path:
            self._path.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self.folder, prefix=f".{name}.", encoding="utf-8", delete=False
        ) as file:
            json.dump(as_json(report), file)
        os.replace(file.name, path)
        self._path = path
        return path

    def _run(self) -> None:
        wait, ended = _FIRST_S, threading.Event()
        while not ended.wait(wait):
            self.write()
            wait = min(2 * wait, _MOST_S)


def start() -> None:
    """Write reports if TF_FUSE_REPORT_DIR names a folder."""
    folder = os.environ.get(VARIABLE)
    if folder:
        FolderWriter(Path(folder)).start()


def _has_something(report: Report) -> bool:
    return bool(
        report.functions or report.weight_updates or report.server_updates or report.timeline
        or any(one.counters.get("functions") for one in report.tasks)
    )  # fmt: skip
