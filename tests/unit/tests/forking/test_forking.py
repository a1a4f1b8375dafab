# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which commands of tests are forked, and that they run as they would be started."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import forking
from tests.forking import popen

_PYTHON = sys.executable
_ROOT = Path(__file__).resolve().parents[4]
_CODE = """
import os, sys
import tensorflow
import tests.forking.popen as popen
print(sys.argv, sys.path[0] == "", __name__, os.getcwd(), popen._server is not None, flush=True)
sys.exit(os.environ.get("STATUS"))
"""


@pytest.mark.parametrize(
    "command",
    [
        ["program.py", "--option"],
        ["-c", "import tf_fuse; tf_fuse.metrics()"],
        ["-c", "import os\nfrom tensorflow.python.eager import context"],
        ["-c", "import os, tensorflow as tf, sys"],
        ["-m", "tf_fuse", "report", "--help"],
        ["-m", "examples.keras_layouts"],
    ],
)
def test_what_is_forked(command):
    assert popen._argv([_PYTHON, *command]) == command
    assert popen._argv([_PYTHON, "-u", *command]) == command


@pytest.mark.parametrize(
    "command",
    [
        [_PYTHON, "-c", "import os; print('tensorflow')"],
        [_PYTHON, "-c", "from tests import scripted; scripted.give({'tensorflow'})"],
        [_PYTHON, "-P", "-c", "import tensorflow"],
        [_PYTHON, "-m", "tf_fuse", "launch", "program.py"],
        [_PYTHON, "-m", "tf_fuse", "doctor"],
        [_PYTHON, "-m", "pytest"],
        ["sh", "-c", "import tensorflow"],
        [_PYTHON],
        f"{_PYTHON} program.py",
    ],
)
def test_what_is_started_as_ever(command):
    assert popen._argv(command) is None


def test_a_launcher_that_a_program_starts_is_forked():
    command = ["-m", "tf_fuse", "launch", "program.py"]
    assert popen._argv([_PYTHON, *command], by_test=False) == command


@pytest.mark.parametrize(
    ("name", "is_forked"),
    [
        ("TF_ENABLE_ONEDNN_OPTS", False),
        ("PYTHONHASHSEED", False),
        ("TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE", True),  # TensorFlow's coordinators set it.
        ("TF_FUSE_COMPRESS", True),
    ],
)
def test_variables_that_are_read_when_tensorflow_is_loaded(monkeypatch, name, is_forked):
    monkeypatch.setattr(popen, "_server", popen._Server("nowhere"), raising=False)
    env = {k: v for k, v in os.environ.items() if k not in (name, forking.VARIABLE)}
    assert popen._may_fork({**env, name: "another one"}) == is_forked


@pytest.mark.skipif(
    os.environ.get(forking.VARIABLE) == "0", reason="processes are started as users start them"
)
def test_code_has_its_arguments_folder_and_status(tmp_path):
    env = {**os.environ, "STATUS": "told to standard error"}

    def run(number):
        return subprocess.run(
            [_PYTHON, "-c", _CODE, str(number)],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(run, range(3)))
    for number, one in enumerate(found):
        assert one.stdout == f"['-c', '{number}'] True __main__ {tmp_path} True\n"
        assert (one.returncode, one.stderr) == (1, "told to standard error\n")


@pytest.mark.skipif(
    os.environ.get(forking.VARIABLE) == "0", reason="processes are started as users start them"
)
@pytest.mark.parametrize("how", ["as ever", "launched", "command"])
def test_what_a_launcher_starts_is_forked_where_a_test_wants_that(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('is forked:', 'tensorflow' in sys.modules)\n")
    command = forking.command() if how == "command" else [_PYTHON, "-m", "tf_fuse"]
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    env |= {"PYTHONPATH": os.fspath(_ROOT), "TMPDIR": os.fspath(tmp_path)}
    done = subprocess.run(
        [*command, "launch", program],
        env=env | forking.LAUNCHED if how == "launched" else env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"[worker:0] is forked: {how != 'as ever'}\n" in done.stdout


def test_threads_start_one_server_together(monkeypatch):
    server, started, all_there = popen._Server(None), [], threading.Barrier(4)

    def start():
        started.append(1)
        # Others would find no address meanwhile.
        assert not server._starts.acquire(blocking=False)
        return "here"

    def address(_):
        all_there.wait()
        return server.address()

    monkeypatch.setattr(server, "_start", start)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(address, range(4))) == ["here"] * 4
    assert started == [1]
