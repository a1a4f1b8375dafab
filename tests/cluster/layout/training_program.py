# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of four processes that train by plans, and hold losses and weights against one device's.

    training_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Each process gives one result.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.layout import processes as layout_processes
from tests.unit.layout.execution import keras_fits as fits
from tests.unit.layout.execution import training_runs as runs
from tf_fuse import layout

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
COUNT = 2 * fits.BATCH + 6


def transformer(devices: Any) -> dict[str, Any]:
    """Vocabulary, d_ff and heads on one axis, and the batch on the other."""
    ids, labels = runs.text()
    alone, model = runs.Block(), runs.Block()
    step = tf.function(alone.step)
    wanted = [float(step(tf.constant(ids), tf.constant(labels))) for _ in range(runs.STEPS)]
    args = [tf.TensorSpec(ids.shape, tf.int32), tf.TensorSpec(labels.shape, tf.int32)]
    problem = layout.function_problem(model.step, runs.MESH, args, rates=runs.rates(runs.MESH))
    run = layout.execute(layout.plan_by_rules(problem, runs.LAYOUT, runs.NAMES), devices)
    got = [float(run(ids, labels)) for _ in range(runs.STEPS)]
    weights = [[one.numpy() for one in each.weights.values()] for each in (model, alone)]
    return {
        "losses": runs.worst(got, wanted),
        "weights": runs.worst(*weights),
        "falls": wanted[0] - wanted[-1],
        "layouts": {name: str(one) for name, one in run.plan.variables.items()},
        "share": run.traffic.received_bytes * len(JOBS.split(",")) == run.program.received_bytes,
    }


def keras_fit(devices: Any) -> dict[str, Any]:
    """Keras's loops: a fit with a validation and a small last batch, evaluation and prediction."""
    import keras

    x, y = fits.examples(COUNT)
    found = {}
    for name in ("one", "laid out"):
        model = fits.model_of(keras)
        laid_out = None
        if name == "laid out":
            names = {model.layers[0]: {"kernel": [None, "hidden"]}, "x": ["batch", None]}
            laid_out = layout.lay_out(
                model, runs.MESH, devices, mode="propagate", rules="hidden:cols;batch:rows",
                dimensions=names, links=dict(runs.rates(runs.MESH).links),
            )  # fmt: skip
        stops = [keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)]
        history = model.fit(
            x, y, fits.BATCH, 2, 0, stops, validation_data=(x[: fits.BATCH], y[: fits.BATCH])
        ).history
        found[name] = {
            "history": [np.asarray(history[one]) for one in sorted(history)],
            "evaluated": [np.asarray(model.evaluate(x, y, fits.BATCH, 0))],
            "predicted": [model.predict(x, fits.BATCH, 0)],
            "weights": model.get_weights(),
        }
    assert laid_out is not None
    plan = laid_out.plans["train"][0]
    kernel = model.layers[0].kernel.path
    both = {key: fits.worst(one, found["laid out"][key]) for key, one in found["one"].items()}
    return {**both, "layouts": [str(plan.variables[kernel]), str(plan.inputs["x"])]}


def main() -> None:
    devices = layout_processes.begin(runs.MESH, NUMBER, JOBS)
    found = {"transformer": transformer(devices), "keras": keras_fit(devices)}
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
