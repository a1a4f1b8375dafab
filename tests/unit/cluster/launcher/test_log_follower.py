# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`LogFollower`: which files it looks at, and from where on."""

import io
from pathlib import Path

from tf_fuse.cluster.launcher.log_follower import LogFollower


def test_what_a_log_has_before_is_not_shown(tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text("of an earlier job\n")
    out = io.StringIO()
    follower = LogFollower(out)
    follower.follow([log, tmp_path / "ps-1.log"])
    with follower, log.open("a") as file:
        file.write("new\nno end")
    assert out.getvalue() == "[worker:0] new\n[worker:0] no end\n"


def test_a_log_that_somebody_empties_is_read_from_its_start(tmp_path):
    """Also if it is looked at while it is empty, and its first lines are many."""
    log = tmp_path / "ps-0.log"
    log.write_text("12345\n")
    out = io.StringIO()
    follower = LogFollower(out, names_tasks=False)
    follower.follow([log])
    log.write_text("")
    follower._write(whole_lines=True)
    log.write_text("a\nb\nc\nd\n")
    follower._write(whole_lines=True)
    assert out.getvalue() == "a\nb\nc\nd\n"


def test_nothing_but_the_logs_is_looked_at(tmp_path, monkeypatch):
    """A folder of logs may have checkpoints, too, on a disk of another host."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "worker-0.log").write_text("of others\n")
    looked = []
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **how: looked.append(path) or stat(path, **how))
    monkeypatch.setattr("os.scandir", lambda path=".": looked.append(path))
    monkeypatch.setattr("os.listdir", lambda path=".": looked.append(path))
    log = tmp_path / "worker-0.log"
    out = io.StringIO()
    with LogFollower(out) as follower:
        follower.follow([log])
        log.write_text("shown\n")
    assert out.getvalue() == "[worker:0] shown\n"
    assert set(looked) == {log}
