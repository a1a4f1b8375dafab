# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several processes that feed their own parts of each batch.

    data_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Each process gives one result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.cluster.layout import processes as layout_processes
from tests.cluster.layout.execution_program import CLASSES, IO, ROWS, Model, restored, values
from tests.unit.layout.execution import keras_fits as fits
from tf_fuse import layout
from tf_fuse.layout.cost.model import Rates

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
PROCESSES = len(JOBS.split(","))
MESH = layout.Mesh((2, 2), ("x", "y"))
STEPS = 3
# By this variable all layouts are tried; else those of `FEW`.
ALL = "LAYOUT_TEST_ALL"
FEW = ("parts", "other axis")
# Layouts of what is fed: by the parts themselves, whole, along the other axis, and by both.
CASES: dict[str, tuple[Any, ...]] = {
    "parts": ("x",),
    "whole": (),
    "other axis": ("y",),
    "both axes": (("x", "y"),),
}
RNG = np.random.default_rng(11)
IDS = RNG.integers(0, ROWS, (STEPS, ROWS)).astype(np.int32)
LABELS = RNG.integers(0, CLASSES, (STEPS, ROWS)).astype(np.int32)
RATES = Rates(MESH, dict.fromkeys(MESH.axes, layout.Link(1e-9, 1e-12)), 1e-9)
SPECS = [tf.TensorSpec([ROWS], tf.int32)] * 2


def whole_batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, LABELS))


def own_batches(num_shards: int, shard_id: int) -> tf.data.Dataset:
    rows = ROWS // num_shards
    at = slice(shard_id * rows, (shard_id + 1) * rows)
    return tf.data.Dataset.from_tensor_slices((IDS[:, at], LABELS[:, at]))


def worst(first: Any, second: Any) -> float:
    pairs = [
        (np.asarray(a, float), np.asarray(b, float)) for a, b in zip(first, second, strict=True)
    ]
    return max(float((np.abs(a - b) / (1 + np.abs(b))).max()) for a, b in pairs)


def functions(devices: Any) -> dict[str, Any]:
    """Losses, classes, variables and checkpoints, by each layout and each kind of data."""
    alone = Model(5)
    step = tf.function(alone.step)
    wanted = [step(tf.constant(x), tf.constant(y)) for x, y in zip(IDS, LABELS, strict=True)]
    found = {}
    model = Model(5)
    for name, spec in CASES.items():
        if ALL not in os.environ and name not in FEW:
            continue
        kinds = {"dataset": whole_batches()} | ({"callable": own_batches} if spec == ("x",) else {})
        for kind, data in kinds.items():
            layouts = {"ids|labels": spec, "first": (None, "y")}
            plan = layout.plan(model.step, MESH, SPECS, rates=RATES, layouts=layouts)
            run = layout.execute(plan, devices, data_per_process=True)
            got = [run(*one) for one in run.batches(data)]
            found[f"{name}, {kind}"] = {
                "count": len(got),
                "losses": worst([one[0] for one in got], [one[0] for one in wanted]),
                "classes": worst([one[1] for one in got], [one[1] for one in wanted]),
                "variables": worst(model.values(), alone.values()),
                "planned": run.program.received_bytes == PROCESSES * run.traffic.received_bytes,
                "fed": run.traffic.fed_bytes,
                "restored": restored(model),
            }
            run.release()
            model.reset(5)
    return found


def whole_batch(devices: Any) -> dict[str, Any]:
    """Every process feeds the same whole batch, as without the option."""
    model, alone = Model(5), Model(5)
    run = layout.execute(layout.plan(model.step, MESH, SPECS), devices)
    got = [run(*one)[0] for one in run.batches(whole_batches())]
    step = tf.function(alone.step)
    wanted = [step(tf.constant(x), tf.constant(y))[0] for x, y in zip(IDS, LABELS, strict=True)]
    return {"shards": [run.num_shards, run.shard_id], "losses": worst(got, wanted)}


def said(call: Any) -> str:
    try:
        call()
    except (layout.LayoutError, ValueError) as error:
        return str(error)
    return "nothing"


def errors(devices: Any) -> dict[str, Any]:
    """Data that does not fit; and that the processes go on after each of them."""
    model = Model(5)
    run = layout.execute(layout.plan(model.step, MESH, SPECS), devices, data_per_process=True)

    def shorter(num_shards: int, shard_id: int) -> tf.data.Dataset:
        return own_batches(num_shards, shard_id).take(2 if shard_id else 3)

    def uncounted(num_shards: int, shard_id: int) -> tf.data.Dataset:
        return shorter(num_shards, shard_id).filter(lambda *_: True)

    def smaller(num_shards: int, shard_id: int) -> Any:
        rows = ROWS // num_shards // (2 if shard_id else 1)
        return iter([(IDS[0][:rows], LABELS[0][:rows])])

    def broken(num_shards: int, shard_id: int) -> Any:
        rows = ROWS // num_shards
        yield IDS[0][:rows], LABELS[0][:rows]
        if shard_id:
            raise ValueError("the file is gone")
        yield IDS[1][:rows], LABELS[1][:rows]

    def through(data: Any) -> None:
        for one in run.batches(data):
            run(*one)

    found = {
        "shards": [run.num_shards, run.shard_id],
        "shorter": said(lambda: through(shorter)),
        "uncounted": said(lambda: through(uncounted)),
        "smaller": said(lambda: through(smaller)),
        "broken": said(lambda: through(broken)),
        "whole": said(lambda: run(IDS[0], LABELS[0])),
        "kind": said(lambda: next(run.batches(3))),
        "after": sum(1 for one in run.batches(own_batches) if run(*one)),
    }
    run.release()
    odd = layout.plan(lambda x: x * 2.0, MESH, [tf.TensorSpec([3, 4])])
    found["odd"] = said(lambda: layout.execute(odd, devices, data_per_process=True))
    return found


def chief_alone(devices: Any) -> dict[str, Any]:
    """A `ModelCheckpoint` in the first process only: it has all slices of each variable."""
    given = keras.Input((IO,))
    model = keras.Model(given, keras.layers.Dense(2)(given))
    kernel, bias = model.layers[1].kernel, model.layers[1].bias

    def step(x: Any) -> Any:
        kernel.assign_add(tf.ones([IO, 2]))
        return tf.reduce_sum(model(x))

    # The second axis lies within each process, the first one between them.
    layouts = {kernel.path: ("y", None), bias.path: ()}
    plan = layout.plan(step, MESH, [tf.TensorSpec([ROWS, IO])], layouts=layouts)
    run = layout.execute(plan, devices, data_per_process=True)
    part = values(3, ROWS // PROCESSES, IO)
    run(part)
    found = True
    if NUMBER == 0:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "own.weights.h5")
            callback = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
            callback.set_model(model)
            callback.on_epoch_end(0, {})
            before = model.get_weights()
            kernel.assign(tf.zeros([IO, 2]))
            model.load_weights(path)
            after = model.get_weights()
            found = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    run(part)
    run.release()
    return {"same": found}


def keras_fit(devices: Any) -> dict[str, Any]:
    """Keras's loops by parts, with a smaller last batch, beside the whole data on one device."""
    x, y = fits.examples(fits.BATCH + 4)
    results = []
    for laid_out_here in (False, True):
        model = fits.model_of(keras)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(fits.BATCH)
        held = data.take(1)
        if laid_out_here:
            laid_out = layout.lay_out(
                model, MESH, devices, data_per_process=True, layouts={"x": ("x", None)}
            )
            data, held = laid_out.parts(data), laid_out.parts(held)
        history = model.fit(data, epochs=2, verbose=0, validation_data=held).history
        results.append([
            *(history[one] for one in sorted(history)), model.predict(held, verbose=0),
            *model.get_weights(),
        ])  # fmt: skip
    different = worst(*results)
    own = tf.data.Dataset.from_tensor_slices((x, y)).batch(fits.BATCH // PROCESSES)

    def shorter(num_shards: int, shard_id: int) -> tf.data.Dataset:
        return own.take(1 + shard_id)

    def uncounted(num_shards: int, shard_id: int) -> tf.data.Dataset:
        return own.take(1 + shard_id).filter(lambda *_: True)

    return {
        "different": different,
        "shards": [laid_out.num_shards, laid_out.shard_id],
        "layout": str(laid_out.plans["train"][0].inputs["x"]),
        "shorter": said(lambda: laid_out.parts(shorter)),
        "uncounted": said(lambda: model.fit(laid_out.parts(uncounted), verbose=0)),
        "again": said(lambda: model.fit(own.take(1), verbose=0)),
    }


def main() -> None:
    devices = layout_processes.begin(MESH, NUMBER, JOBS)
    parts = (functions, whole_batch, errors, chief_alone, keras_fit)
    found = {one.__name__: one(devices) for one in parts}
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
