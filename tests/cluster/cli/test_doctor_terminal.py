# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The doctor on a terminal shows what it checks; in a pipe it does not."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from tests.cluster.cli.doctor_runs import NAMES, NOT_TRIED, lib, run

pytestmark = pytest.mark.cluster


# --- On a terminal -------------------------------------------------------------------------------


def _on_terminal(env, stream, *arguments, package):
    """Runs the doctor with one stream on a terminal; returns what that got, and the other."""
    ours, theirs = pty.openpty()
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    with subprocess.Popen(
        [sys.executable, "-m", "tf_fuse", "doctor", *arguments],
        env={**env, "PYTHONPATH": str(package.parent), "TERM": "xterm", "COLUMNS": "200"},
        cwd=env["HOME"],
        stdin=subprocess.DEVNULL,
        **{stream: theirs, other: subprocess.PIPE},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # EIO: the other end is closed
                break
            shown += part
        os.close(ours)
        rest = getattr(process, other).read()
    assert process.returncode == 1
    return shown.decode(), rest.decode()


# What erases the spinner's line, shows the cursor and so on.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def test_terminal_shows_what_is_being_checked(isolated_env, copied):
    (lib(copied) / "libtf_fuse.so").unlink()
    shown, _ = _on_terminal(isolated_env, "stdout", package=copied)
    waits = ": starts a worker and a server, which takes some 10 to 20 s"
    assert "checking versions" in shown
    assert f"checking round trip{waits}" in shown
    lines = [_CONTROL.sub("", line) for line in shown.splitlines()]
    assert f"FAIL library: {NOT_TRIED}versions" in lines
    assert f"FAIL round trip: {NOT_TRIED}versions, library, protocol" in lines


def test_json_is_clean_while_the_terminal_shows_what_is_being_checked(isolated_env, copied):
    (lib(copied) / "libtf_fuse.so").unlink()
    shown, out = _on_terminal(isolated_env, "stderr", "--json", "-", package=copied)
    assert [check["check"] for check in json.loads(out)["checks"]] == NAMES
    assert "checking versions" in shown
    assert "FAIL" not in shown


def test_no_spinner_in_a_pipe(isolated_env, copied):
    (lib(copied) / "libtf_fuse.so").unlink()
    # Which would have rich take any stream for a terminal.
    done = run({**isolated_env, "FORCE_COLOR": "1"}, "-m", "tf_fuse", "doctor", package=copied)
    assert "checking" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
