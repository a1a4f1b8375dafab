# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse doctor` as a user runs it: where all is well, and where something is not."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.cluster.cli.doctor_runs import NAMES, NOT_TRIED, PACKAGE, lib, run
from tf_fuse import _native
from tf_fuse.cli import round_trip

pytestmark = pytest.mark.cluster


def test_all_is_well(isolated_env, tmp_path):
    report = tmp_path / "report.json"
    done = run(isolated_env, "-m", "tf_fuse", "doctor", "--json", str(report))
    lines = [line for line in done.stdout.splitlines() if not line.startswith("     remedy: ")]
    words = {name: "OK  " for name in NAMES}
    # An environment may well have both, and works.
    both = len(_native.tensorflow_versions()) == 2
    if both:
        words["versions"] = "WARN"
    assert [line.split(":")[0] for line in lines] == [f"{words[n]} {n}" for n in NAMES], done
    assert done.returncode == 0
    written = json.loads(report.read_text())
    assert written["works"] is True
    assert [check["check"] for check in written["checks"]] == NAMES
    assert all(check["ok"] for check in written["checks"])
    assert [check["warning"] for check in written["checks"]] == [both] + [False] * 5
    assert [check["remedy"] == "" for check in written["checks"]] == [not both] + [True] * 5
    assert re.fullmatch(
        r"\d+\.\d\d ms from a worker to a server and back, one fused receive each way \(median of "
        r"20 calls\); starting both took \d+\.\d s",
        written["checks"][-1]["detail"],
    )


def _checks(done):
    assert done.returncode == 1, done
    checks = json.loads(done.stdout)["checks"]
    assert [check["check"] for check in checks] == NAMES
    return {check["check"]: check for check in checks}


def test_library_is_missing(isolated_env, copied):
    library = lib(copied) / "libtf_fuse.so"
    library.unlink()
    done = run(isolated_env, "-m", "tf_fuse", "doctor", package=copied)
    assert done.returncode == 1
    first, remedy, *rest = done.stdout.splitlines()
    assert first == (
        f"FAIL versions: the native library of tf_fuse is missing: {library} does not exist. Build "
        "it in tf_fuse's source folder: python -m pip install --force-reinstall --no-deps ."
    )
    assert remedy.startswith("     remedy: ")
    assert rest[:3] == [
        f"FAIL library: {NOT_TRIED}versions",
        f"FAIL protocol: {NOT_TRIED}versions, library",
        f"FAIL internals: {NOT_TRIED}versions",
    ]
    assert rest[3].startswith("OK   port: ")
    assert rest[4:] == [f"FAIL round trip: {NOT_TRIED}versions, library, protocol"]


def test_the_script_starts_without_the_library(isolated_env, copied):
    (lib(copied) / "libtf_fuse.so").unlink()
    # As pip writes it for an entry point.
    script = Path(isolated_env["HOME"]) / "tf-fuse"
    script.write_text("import sys\nfrom tf_fuse.__main__ import main\nsys.exit(main())\n")
    done = run(isolated_env, str(script), "doctor", "--json", "-", package=copied)
    assert "the native library of tf_fuse is missing" in _checks(done)["versions"]["detail"]


def test_only_the_doctor_starts_without_the_library(isolated_env, copied):
    (lib(copied) / "libtf_fuse.so").unlink()
    expected = "tf_fuse._native.LibraryMissingError: the native library of tf_fuse is missing"
    other = Path(isolated_env["HOME"]) / "other"
    other.mkdir()
    (other / "__init__.py").write_text("import tf_fuse\n")
    (other / "__main__.py").write_text("")
    for arguments in (
        ["-c", "import tf_fuse"],
        ["-m", "tf_fuse", "explain", "--example", "cond"],
        ["-m", "tf_fuse.cluster.serve"],
        ["-c", "import tf_fuse.cli"],
        ["-m", "other", "doctor"],
    ):
        done = run(isolated_env, *arguments, package=copied)
        assert done.returncode == 1, arguments
        assert expected in done.stderr, arguments


def test_library_is_for_another_tensorflow(isolated_env, copied):
    info = lib(copied) / "build_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "tensorflow": "2.19.0"}))
    done = run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert "was built against TensorFlow 2.19.0" in checks["versions"]["detail"]
    assert ", but tensorflow" in checks["versions"]["detail"]
    assert checks["versions"]["remedy"]
    assert checks["round trip"]["detail"].startswith(NOT_TRIED)


def test_library_is_damaged(isolated_env, copied):
    (lib(copied) / "libtf_fuse.so").write_bytes(b"no library")
    done = run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert checks["versions"]["ok"]
    assert "it cannot be loaded: " in checks["library"]["detail"]
    assert "pip install" in checks["library"]["remedy"]


@pytest.mark.slow
def test_round_trip_fails(isolated_env, copied):
    # A worker that is not there: the tasks' entry point leaves at once.
    (copied / "cluster" / "serve.py").write_text(
        (copied / "cluster" / "serve.py")
        .read_text()
        .replace("    _status = main()\n", "    _status = 3\n")
    )
    done = run(isolated_env, "-m", "tf_fuse", "doctor", "--json", "-", package=copied)
    checks = _checks(done)
    assert [name for name, check in checks.items() if not check["ok"]] == ["round trip"]
    assert "ClusterStartError" in checks["round trip"]["detail"]


def test_round_trip_that_is_not_fused_fails(isolated_env, monkeypatch):
    for name in set(os.environ) - set(isolated_env):
        monkeypatch.delenv(name)
    for name, value in isolated_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    stock = round_trip._PROGRAM.replace('"do_fuse_recv": True', '"do_fuse_recv": False')
    monkeypatch.setattr(round_trip, "_PROGRAM", stock)
    with pytest.raises(RuntimeError) as caught:
        round_trip.measure()
    assert str(caught.value).startswith(
        "exit status 1: [0, 0] fused receives of worker and server (expected 21 each)"
    )


def test_round_trip_is_told_from_what_is_logged(monkeypatch):
    program = 'import sys; open(sys.argv[1], "w").write("two calls"); print("a line after it")'
    monkeypatch.setattr(round_trip, "_PROGRAM", program)
    assert round_trip.measure() == "two calls"


def test_run_hands_over_to_the_server(isolated_env):
    done = run(isolated_env, "-m", "tf_fuse", "run")
    assert done.returncode == 2
    (error,) = (x for x in done.stderr.splitlines() if x.startswith("tf_fuse serve: error: "))
    assert "TF_CONFIG" in error
