# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse bench` trains both modes and compares their losses; it needs no checkout."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tf_fuse
from tf_fuse import cli
from tf_fuse.cli import bench

pytestmark = pytest.mark.cluster


def test_both_modes_run_from_the_package_alone(isolated_env, tmp_path):
    package = tmp_path / "installed" / "tf_fuse"
    shutil.copytree(
        Path(tf_fuse.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    # As pip writes it for an entry point: a file, so that tests/forking can fork it.
    script = tmp_path / "entry_point.py"
    script.write_text("import sys\nfrom tf_fuse.__main__ import main\nsys.exit(main())\n")
    options = "--tables 3 --ps 1 --steps 2 --rounds 1 --json -"
    done = subprocess.run(
        [sys.executable, str(script), "bench", *options.split()],
        env={**isolated_env, "PYTHONPATH": os.fspath(package.parent)},
        cwd=isolated_env["HOME"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["settings"] == {"tables": 3, "workers": 1, "ps": 1, "steps": 2, "rounds": 1}
    assert set(found["modes"]) == {"stock", "fused"}
    assert found["losses_equal"] is True


def _job(monkeypatch, losses):
    """Replaces the runs; returns the modes in the order of their runs."""
    modes = []

    def run_job(settings):
        modes.append(settings["mode"])
        rate = {"stock": 10.0, "fused": 20.0}[settings["mode"]]
        return {
            "steps_per_s": rate,
            "cpu_ms_per_step": 1.0,
            "losses": losses[settings["mode"]],
        }

    monkeypatch.setattr(bench, "_run_job", run_job)
    return modes


def test_rounds_alternate_and_the_demo_is_one_round(monkeypatch, capsys):
    modes = _job(monkeypatch, {"stock": [1.0], "fused": [1.0]})
    assert cli.main(["bench", "--rounds", "2"]) == 0
    assert modes == ["stock", "fused", "fused", "stock"]
    out = capsys.readouterr().out
    assert "fused over stock: 2.00 times the steps" in out
    assert "losses: equal, bit for bit" in out
    modes.clear()
    assert cli.main(["demo"]) == 0
    assert modes == ["stock", "fused"]


def test_losses_that_differ_are_an_error_of_one_worker_alone(monkeypatch, capsys):
    _job(monkeypatch, {"stock": [1.0], "fused": [1.5]})
    assert cli.main(["bench"]) == 1
    assert "losses: DIFFERENT" in capsys.readouterr().out
    assert cli.main(["bench", "--workers", "2"]) == 0
    assert "losses" not in capsys.readouterr().out


def test_a_run_that_fails_is_reported(monkeypatch, capsys):
    def fail(settings):
        raise bench.BenchError("stock ended with exit status 1: no memory")

    monkeypatch.setattr(bench, "_run_job", fail)
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "tf-fuse: error: stock ended with exit status 1: no memory\n"
    )


def test_a_setting_must_be_positive(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--steps", "0"])
    assert "'0' is not a whole number of 1 or more" in capsys.readouterr().err
