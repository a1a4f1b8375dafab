# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/shard_update on real processes: its numbers, and losses that are stock's."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.shard_update import models

# Four processes that import TensorFlow: slow on a busy machine with few cores.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROOT = Path(__file__).resolve().parents[3]
_ROUNDS, _STEPS, _WARM_UP = 2, 3, 1
_TINY = {
    "mlp": "batch=2,layers=2,width=64",
    "transformer": "batch=2,blocks=1,heads=2,length=4,vocabulary=16,width=8",
    "ncf": "batch=4,items=7,users=9,width=4",
    "resnet": "batch=8,classes=5,image=32,width=4",
}


@pytest.fixture
def run_benchmark(isolated_env, tmp_path):
    """Runs the command for a tiny model, from another folder; returns its result."""

    def run(model, options):
        out = tmp_path / "out.json"
        script = _ROOT / "benchmarks" / "shard_update" / "run.py"
        common = f"--rounds {_ROUNDS} --steps {_STEPS} --warm-up {_WARM_UP} --replicas 2"
        done = subprocess.run(
            [sys.executable, str(script), "--model", model, "--size", _TINY[model],
             *common.split(), *options.split(), "--json", str(out)],
            cwd=tmp_path,
            env=isolated_env,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    return run


def _check(entry, state_bytes):
    assert list(entry) == [
        "step_ms",
        "update_ms",
        "collective_bytes_per_step",
        "optimizer_state_bytes",
        "peak_rss_bytes",
        "losses",
    ]
    assert 0 < entry["step_ms"]["min"] <= entry["step_ms"]["median"] <= entry["step_ms"]["max"]
    assert isinstance(entry["update_ms"], float)
    assert entry["optimizer_state_bytes"] == state_bytes
    assert entry["peak_rss_bytes"] > 10 << 20
    assert len(entry["losses"]) == _WARM_UP + _ROUNDS * _STEPS


def test_stock_and_unsharded(run_benchmark, tmp_path):
    picture = tmp_path / "new" / "out.svg"
    result = run_benchmark("mlp", f"--modes stock,unsharded --plot {picture}")
    assert (result["model"], result["optimizer"], result["replicas"]) == ("mlp", "adam", 2)
    assert list(result["modes"]) == ["stock", "unsharded"]
    elements = 2 * (64 * 64 + 64)
    for entry in result["modes"].values():
        # Two slots, the counter of steps (int64) and the learning rate.
        _check(entry, 2 * 4 * elements + 8 + 4)
        # All gradients, once each way; and headers, and what else is on the interface.
        assert entry["collective_bytes_per_step"] >= 2 * 4 * elements
    losses = [entry["losses"] for entry in result["modes"].values()]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == len(losses[0])
    assert result["losses_compared"] == {
        "unsharded": {"equal": True, "first_step": None, "largest_difference": 0.0}
    }
    assert list(result["ratio"]) == ["stock/unsharded"]
    assert picture.stat().st_size > 0


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(one, marks=() if one == "ncf" else pytest.mark.slow)
        for one in sorted(set(models.MODELS) - {"mlp"})
    ],
)
def test_other_models(run_benchmark, model):
    result = run_benchmark(model, "--modes unsharded --optimizer momentum")
    given = (word.split("=") for word in _TINY[model].split(","))
    sizes = models.sizes_of(model, {name: int(value) for name, value in given})
    elements = models.parameter_count(model, sizes)
    _check(result["modes"]["unsharded"], 4 * elements + 8 + 4)
    assert result["settings"]["parameters"] == elements
    # Nothing to compare with.
    assert (result["ratio"], result["losses_compared"]) == ({}, {})


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch (the extra gloo) is not installed"
)
@pytest.mark.parametrize("model", models.MODELS)
def test_pytorch_trains_the_same_model(run_benchmark, model):
    options = "--modes unsharded,ddp,zero --optimizer momentum --learning-rate 0.01"
    result = run_benchmark(model, options)
    modes = result["modes"]
    assert list(modes) == ["unsharded", "ddp", "zero"]
    for name in ("ddp", "zero"):
        assert modes[name]["losses"] == pytest.approx(modes["unsharded"]["losses"], rel=1e-4)
    # One slot; ZeRO holds whole variables of it.
    assert modes["ddp"]["optimizer_state_bytes"] == 4 * result["settings"]["parameters"]
    assert 0 < modes["zero"]["optimizer_state_bytes"] < modes["ddp"]["optimizer_state_bytes"]
