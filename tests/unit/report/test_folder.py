# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a process writes into the folder that TF_FUSE_REPORT_DIR names, and what it does not."""

import logging
import os

import pytest

import tf_fuse.report
from tests.unit.report.made_reports import WORKER, whole_report
from tf_fuse.report import folder
from tf_fuse.report.json_form import read
from tf_fuse.report.records.model import Report, Task


@pytest.fixture
def said(monkeypatch):
    """What the process reports of itself, in turn; it is the task worker:0."""
    reports = []
    monkeypatch.setattr(folder, "own_task", lambda: WORKER)
    monkeypatch.setattr(folder, "report_of_process", lambda timeline: reports.pop(0))
    return reports


def test_the_file_has_the_name_of_the_task_and_is_replaced(tmp_path, said):
    writer = folder.FolderWriter(tmp_path / "new")
    said += [
        whole_report(),
        Report(made="2026-02-01T00:00:00Z", tasks=(Task(WORKER, "", {"functions": 1}),)),
    ]
    path = writer.write()
    assert path == tmp_path / "new" / "worker_0.json"
    assert read(path) == whole_report()
    assert writer.write() == path
    # What was known before stays: others may have ended since.
    assert read(path).functions == whole_report().functions
    assert read(path).made == "2026-02-01T00:00:00Z"
    assert os.listdir(tmp_path / "new") == ["worker_0.json"]


def test_a_process_without_anything_to_say_writes_nothing(tmp_path, said):
    said.append(Report(tasks=(Task(WORKER, "", {"functions": 0}),)))
    assert folder.FolderWriter(tmp_path / "new").write() is None
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_logged_once(tmp_path, said, caplog):
    said += [whole_report(), whole_report()]
    (tmp_path / "file").write_text("")
    writer = folder.FolderWriter(tmp_path / "file" / "folder")
    with caplog.at_level(logging.WARNING, "tf_fuse"):
        assert (writer.write(), writer.write()) == (None, None)
    (message,) = [one.getMessage() for one in caplog.records]
    assert message.startswith("TF_FUSE_REPORT_DIR: no report is written into ")


def test_nothing_starts_without_the_variable(monkeypatch):
    started = []
    monkeypatch.setattr(folder.FolderWriter, "start", lambda self: started.append(self.folder))
    monkeypatch.delenv("TF_FUSE_REPORT_DIR", raising=False)
    folder.start()
    assert started == []
    monkeypatch.setenv("TF_FUSE_REPORT_DIR", "reports")
    folder.start()
    assert [str(one) for one in started] == ["reports"]


@pytest.mark.parametrize("seconds", [0, -1, 601, float("nan")])
def test_seconds_of_a_recording_are_checked(seconds):
    with pytest.raises(ValueError, match="seconds is more than 0 and at most 600, got"):
        tf_fuse.report.record(seconds)
