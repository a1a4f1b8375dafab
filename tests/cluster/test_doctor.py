# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse doctor` as a user runs it: where all is well, and where something is not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tf_fuse

pytestmark = pytest.mark.cluster

_PACKAGE = Path(tf_fuse.__file__).parent
_NAMES = ["versions", "library", "protocol", "port", "round trip"]
_NOT_TRIED = "not tried, because this failed: "


def _run(env, *arguments, package=_PACKAGE):
    """Runs Python with the package's folder first on its path; returns the finished process."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**env, "PYTHONPATH": str(package.parent)},
        cwd=env["HOME"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=250,
        check=False,
    )


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, to break."""
    folder = tmp_path / "copy" / "tf_fuse"
    shutil.copytree(_PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_all_is_well(isolated_env, tmp_path):
    report = tmp_path / "report.json"
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", str(report))
    lines = [line for line in done.stdout.splitlines() if line]
    assert [line.split(":")[0] for line in lines] == [f"OK   {name}" for name in _NAMES], done
    assert done.returncode == 0
    written = json.loads(report.read_text())
    assert written["works"] is True
    assert [check["check"] for check in written["checks"]] == _NAMES
    assert all(check["ok"] and check["remedy"] == "" for check in written["checks"])
    assert written["checks"][-1]["detail"] == "value 6.0 (expected 6.0), fused receives 1"


def _checks(done):
    assert done.returncode == 1, done
    checks = json.loads(done.stdout)["checks"]
    assert [check["check"] for check in checks] == _NAMES
    return {check["check"]: check for check in checks}


def test_library_is_missing(isolated_env, copied):
    library = copied / "_lib" / "libtf_fuse.so"
    library.unlink()
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", package=copied)
    assert done.returncode == 1
    first, remedy, *rest = done.stdout.splitlines()
    assert first == (
        f"FAIL versions: the native library of tf_fuse is missing: {library} does not exist. Build "
        "it in tf_fuse's source folder: python -m pip install --force-reinstall --no-deps ."
    )
    assert remedy.startswith("     remedy: ")
    assert rest[:2] == [
        f"FAIL library: {_NOT_TRIED}versions",
        f"FAIL protocol: {_NOT_TRIED}versions, library",
    ]
    assert rest[2].startswith("OK   port: ")
    assert rest[3:] == [f"FAIL round trip: {_NOT_TRIED}versions, library, protocol"]


def test_only_the_doctor_starts_without_the_library(isolated_env, copied):
    (copied / "_lib" / "libtf_fuse.so").unlink()
    expected = "tf_fuse._native.LibraryMissingError: the native library of tf_fuse is missing"
    other = Path(isolated_env["HOME"]) / "other"
    other.mkdir()
    (other / "__init__.py").write_text("import tf_fuse\n")
    (other / "__main__.py").write_text("")
    for arguments in (
        ["-c", "import tf_fuse"],
        ["-m", "tf_fuse", "explain", "--example", "cond"],
        ["-m", "other", "doctor"],
    ):
        done = _run(isolated_env, *arguments, package=copied)
        assert done.returncode == 1, arguments
        assert expected in done.stderr, arguments


def test_library_is_for_another_tensorflow(isolated_env, copied):
    info = copied / "_lib" / "build_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "tensorflow": "2.20.0"}))
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert "was built against TensorFlow 2.20.0, but tensorflow" in checks["versions"]["detail"]
    assert checks["versions"]["remedy"]
    assert checks["round trip"]["detail"].startswith(_NOT_TRIED)


def test_library_is_damaged(isolated_env, copied):
    (copied / "_lib" / "libtf_fuse.so").write_bytes(b"no library")
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert checks["versions"]["ok"]
    assert "it cannot be loaded: " in checks["library"]["detail"]
    assert "pip install" in checks["library"]["remedy"]


def test_round_trip_fails(isolated_env, copied):
    # A worker that is not there: the tasks' entry point leaves at once.
    (copied / "cluster" / "serve.py").write_text(
        (copied / "cluster" / "serve.py")
        .read_text()
        .replace("    _status = main()\n", "    _status = 3\n")
    )
    done = _run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert [name for name, check in checks.items() if not check["ok"]] == ["round trip"]
    assert "ClusterStartError" in checks["round trip"]["detail"]


def test_run_hands_over_to_the_server(isolated_env):
    done = _run(isolated_env, "-m", "tf_fuse", "run")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("tf_fuse serve: error: ")
    assert "TF_CONFIG" in done.stderr
