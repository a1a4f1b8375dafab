# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests. Nothing here imports TensorFlow."""

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import file_order, forking

_ROOT = Path(__file__).resolve().parents[1]

# A busy machine takes any time for an example.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

if os.environ.get(forking.VARIABLE) != "0":
    forking.install()

# What a user's shell may hold that would change what a child process does.
_REMOVED = {"TF_CONFIG", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"}
_REMOVED_PREFIXES = ("TF_FUSE_", "GRPC_")


@pytest.fixture
def isolated_env(tmp_path: Path) -> dict[str, str]:
    """Environment variables for child processes, independent of the user's shell.

    Returns:
        A new dict: HOME is a fresh folder, TF_CONFIG and variables of ours and of gRPC are gone,
        no proxy stands between loopback addresses, TensorFlow logs errors only and sees no GPU.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _REMOVED and not name.startswith(_REMOVED_PREFIXES)
    }
    home = tmp_path / "home"
    home.mkdir()
    return {
        **env,
        "HOME": str(home),
        "no_proxy": "localhost,127.0.0.1",
        "NO_PROXY": "localhost,127.0.0.1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def run_benchmark(isolated_env: dict[str, str], tmp_path: Path) -> Callable[[str, str], Any]:
    """Runs a command of benchmarks/ from another folder than the repository's.

    Returns:
        A function of the folder's name and the options; it returns what the command wrote as JSON.
    """

    def run(name: str, options: str) -> Any:
        out = tmp_path / "out.json"
        done = subprocess.run(
            [
                sys.executable,
                str(_ROOT / "benchmarks" / name / "run.py"),
                *options.split(),
                "--json",
                str(out),
            ],
            cwd=tmp_path,
            env=isolated_env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    return run


class _Ticker:
    """Says every few seconds which tests still run: one that starts clusters may take a minute.

    By the hooks that a run in several processes (`-n`) forwards to the process that prints.
    """

    SECONDS = 5.0

    def __init__(self, config: pytest.Config):
        """Prints through pytest's own reporter, whose output is not captured."""
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._running: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def pytest_sessionstart(self) -> None:
        """Begins to look."""
        self._thread.start()

    def pytest_sessionfinish(self) -> None:
        """Ends before the summary is printed."""
        self._ended.set()
        self._thread.join()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, its fixtures included."""
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test is over."""
        self._running.pop(nodeid, None)

    def _tick(self) -> None:
        while not self._ended.wait(self.SECONDS):
            now = time.monotonic()
            for nodeid, start in list(self._running.items()):
                seconds = round(now - start)
                if seconds >= self.SECONDS:
                    name = nodeid.rpartition("::")[2]
                    self._reporter.write_line(f"    ... {name}: {seconds} s")


@pytest.hookimpl(trylast=True)  # Behind pytest's own, which makes the reporter.
def pytest_configure(config: pytest.Config) -> None:
    """Installs the ticker where tests are named one by one (-v); and see `file_order`."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # `--dist loadfile` takes them as they come
    if config.get_verbosity() > 0 and config.pluginmanager.has_plugin("terminalreporter"):
        config.pluginmanager.register(_Ticker(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a run of all tests, imports in each process (`-n`) another part of the files first.

    pytest rewrites the asserts of a file at its first import, and writes the result to a cache.
    Processes that import the files in the same order rewrite all of them at the same time.
    """
    config = session.config
    given = getattr(config, "workerinput", None)
    if given is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    first = int(given["workerid"].removeprefix("gw"))
    for file in sorted((_ROOT / "tests").rglob("test_*.py"))[first :: given["workercount"]]:
        # What this raises it raises again when pytest collects the file.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(_ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the files of a run in several processes."""
    if hasattr(config, "workerinput"):
        file_order.sort(items)


def pytest_collection_finish() -> None:
    """Leaves what is imported out of garbage collections, which take a third of a second else."""
    gc.collect()
    gc.freeze()
