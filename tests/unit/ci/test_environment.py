# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script .ci/environment where Python has no ensurepip."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.packaging.installed import ROOT

# --- .ci/environment without ensurepip (Debian's python3 without python3-venv) -------------------

# Puts a pip into the environment that runs it, one that says what it is asked for and fails: what
# follows would need the network.
_PUT_STUB_PIP = """
import pathlib, sys, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib"), "pip")
folder.mkdir()
(folder / "__init__.py").write_text("")
(folder / "__main__.py").write_text("import sys; sys.exit(f'stub pip: {sys.argv[1:]}')")
print("put there with", sys.argv[1:], flush=True)
"""
# What the host's pip does.
_HOST_PIPS = {
    "good": """
import pathlib, subprocess, sys
option, python, *rest = sys.argv[1:]
assert option == "--python"
put = pathlib.Path(__file__).parents[1] / "put_stub_pip.py"
sys.exit(subprocess.run([python, put, *rest]).returncode)
""",
    "old": "import sys; sys.exit('no such option: --python')",
    "none": "",
}
# Python imports it when it starts.
_SITECUSTOMIZE = """
import pathlib, urllib.request
def fake(url, timeout):
    assert (url, timeout) == ("https://bootstrap.pypa.io/get-pip.py", 60)
    if not NETWORK:
        raise urllib.request.URLError("no network")
    return pathlib.Path(__file__).with_name("put_stub_pip.py").open("rb")
urllib.request.urlopen = fake
"""


def _make_environment(
    tmp_path: Path, env: dict[str, str], host_pip: str, network: bool
) -> tuple[subprocess.CompletedProcess, str]:
    """Runs .ci/environment with a Python whose ensurepip is hidden; returns that Python, too."""
    hidden = tmp_path / "hidden"
    for name in ("ensurepip", "pip"):
        (hidden / name).mkdir(parents=True)
    (hidden / "ensurepip" / "__init__.py").write_text("raise ImportError")
    (hidden / "pip" / "__init__.py").write_text("raise ImportError" if host_pip == "none" else "")
    (hidden / "pip" / "__main__.py").write_text(_HOST_PIPS[host_pip])
    (hidden / "put_stub_pip.py").write_text(_PUT_STUB_PIP)
    (hidden / "sitecustomize.py").write_text(_SITECUSTOMIZE.replace("NETWORK", str(network)))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{hidden}" "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    source = tmp_path / "source"
    (source / ".ci").mkdir(parents=True)
    (source / "cc").mkdir()
    for name in (".ci/environment", "setup.py", "cc/find_tensorflow.py", "pyproject.toml"):
        shutil.copy(ROOT / name, source / name)
    done = subprocess.run(
        [source / ".ci" / "environment", ".venv"],
        # Only that there is a compiler is looked at so far.
        env={**env, "PYTHON": str(python), "CXX": "sh", "TENSORFLOW": "tensorflow-cpu"},
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    return done, str(python)


def _steps(done: subprocess.CompletedProcess) -> list[str]:
    return [line for line in done.stdout.splitlines() if not line.startswith("    ... ")]


@pytest.mark.parametrize("host_pip", ["good", "old", "none"])
def test_environment_gets_pip_without_ensurepip(
    host_pip: str, tmp_path: Path, isolated_env: dict[str, str]
) -> None:
    done, python = _make_environment(tmp_path, isolated_env, host_pip, network=True)
    version = ".".join(map(str, sys.version_info[:3]))
    put = ["put there with ['install', 'pip']"]
    if host_pip != "good":
        put = [
            f"    {python} has no pip that can do it; downloading get-pip.py",
            "put there with ['--no-setuptools', '--no-wheel']",
        ]
    assert _steps(done) == [
        f"==> making .venv with Python {version}",
        f"==> putting pip into .venv: {python} has no ensurepip",
        *put,
        "==> updating pip",
    ]
    assert done.stderr.splitlines() == [
        *(["no such option: --python"] if host_pip == "old" else []),
        "stub pip: ['install', '--upgrade', 'pip>=24.1']",
        "error: '.venv/bin/python -m pip install --upgrade pip>=24.1' failed with status 1 "
        "(its message stands above)",
    ]
    venv = tmp_path / "source" / ".venv"
    assert (venv / "tf_fuse-origin").read_text() == f"{venv} tensorflow-cpu {python}\n"
    assert not (venv / "get-pip.py").exists()


def test_environment_without_any_pip_names_the_package(
    tmp_path: Path, isolated_env: dict[str, str]
) -> None:
    done, python = _make_environment(tmp_path, isolated_env, "none", network=False)
    assert done.stderr.splitlines() == [
        "    https://bootstrap.pypa.io/get-pip.py: <urlopen error no network>",
        f"error: {python} has no ensurepip, and pip could not be had otherwise (see above). "
        "Install it: sudo apt-get install python3-venv",
    ]
    # What is not finished is made anew the next time.
    assert not (tmp_path / "source" / ".venv" / "tf_fuse-origin").exists()
