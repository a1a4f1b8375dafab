# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras's fit, evaluate and predict by plans, held against the same on one device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.layout.execution.test_execute import run

ROOT = Path(__file__).resolve().parents[4]
SUMS = 5e-6


@pytest.mark.parametrize(
    ("what", "layout", "last"),
    [
        ("rules", "[8, 16/x] on x:2", 6),
        pytest.param("data", "[8, 16] on x:2", 5, marks=pytest.mark.slow),
        pytest.param("tf_keras", "[8, 16] on x:2", 5, marks=pytest.mark.slow),
    ],
)
def test_loops_have_the_values_of_one_device(what, layout, last, isolated_env):
    """With callbacks, a validation, weights of examples, and a last batch of another size."""
    found = run("keras_fits.py", what, isolated_env)
    assert all(one < SUMS for one in found["different"].values()), found["different"]
    # Evaluation and prediction have the variables where training has them.
    assert found["layouts"] == {one: [layout] for one in ("train", "test", "predict")}
    assert found["batches"] == {"train": [last, 8], "test": [2, last, 8], "predict": [last, 8]}
    if what != "rules":
        # What is not a multiple of the devices is done whole by all of them.
        assert found["split"] == [[last, 0], [8, 1]]
    assert found["fewest"] == 2
    # Compiled anew, with several steps for each call, and released.
    assert found["again"] < SUMS
    assert found["old slots"] == ["ResourceVariable"]
    # Releasing failed at the second variable first.
    assert found["releasing"] >= 5
    assert found["released"][0] == ["ResourceVariable"]
    assert found["released"][1] < SUMS


def test_a_resnet_with_its_batch_split(isolated_env):
    """Batch norms have the statistics of whole batches: two sums forward, and one backward."""
    found = run("keras_fits.py", "images", isolated_env)
    assert all(one < SUMS for one in found["different"].values()), found["different"]
    assert found["sums"] == {"FusedBatchNormV3": 2, "FusedBatchNormGradV3": 1}
    assert found["split"] == ["[8/x, 8, 8, 3] on x:2", "[8/x] on x:2"]


def test_an_optimizer_whose_variable_begins_as_a_constant(isolated_env):
    """Nadam's product of momenta is made in the first step, of a number and not of a tensor."""
    found = run("keras_fits.py", "constants", isolated_env)
    assert found["different"] < SUMS
    # The losses, 6 weights with 2 slots of each, the steps, the rate, and the product.
    assert found["values"] == 1 + 3 * 6 + 3


def test_what_cannot_run_is_told(isolated_env):
    found = run("keras_fits.py", "errors", isolated_env)
    assert found == {
        "no model": "a Keras model is laid out, got 'a model'; give a keras.Model on the backend "
        "'tensorflow', or a tf_keras.Model, and a function to layout.plan",
        "option": "there is no option 'mods' for the plans of a model; there are: allowed, batch, "
        "constraints, dimensions, layouts, limits, links, memory_limit_bytes, mode, rates, "
        "renamed, rules, steps",
        "planned": "True",
        "running": "the step 'train' of model 'sequential' runs by a plan for x [8, 8], y [8] "
        "already; plan before the first such batch, or compile the model again",
        "twice": "model 'sequential' runs by plans already; release what layout.lay_out returned",
        "step": "a step is one of train, test, predict, got 'fit'",
        "parts": "a batch is x, (x, y) or (x, y, sample_weight), got 4 parts; give several inputs "
        "of a model as one list or dictionary",
        "sparse": "a batch has a SparseTensor, and plans are for dense tensors of whole shapes; "
        "make it dense in the data's pipeline",
        "eager": "model 'sequential' is compiled with run_eagerly=True, and its steps run by "
        "plans, which are of graphs; compile it without, or release it first",
        "uneven": "\n".join(
            f"- input {name!r} has a batch of 5, which is not a multiple of the 2 devices of mesh "
            "'x:2', so mode 'data' cannot split it; pad it to 6, or set batch to "
            f"{{{name!r}: None}}"
            for name in ("x", "y")
        ),
        "released": "model 'sequential_1' was released; call layout.lay_out again to plan for it",
    }


def test_the_example(isolated_env):
    """`examples.keras_layouts`, by rules on two axes."""
    rules = ["--mesh", "rows:2;cols:2", "--rules", "batch:rows;hidden:cols"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.keras_layouts", *rules, "--examples", "200"],
        env=isolated_env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Epoch 3/3" in done.stdout
    assert "sequential/hidden/kernel: [32, 256/cols] on rows:2;cols:2" in done.stdout.splitlines()
