# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras models whose loops run by plans on two logical devices, beside the same on one device."""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout
from tf_fuse.layout.execution.variables import variable as variables

MESH = layout.Mesh({"x": 2})
BATCH, CLASSES, FEATURES = 8, 3, 8


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return x, rng.integers(0, CLASSES, count).astype(np.int32)


def model_of(library: Any, **compiled: Any) -> Any:
    library.utils.set_random_seed(3)
    # The one of tf_keras draws other numbers in a plan.
    dropout = 0.0 if library.__name__ == "tf_keras" else 0.25
    model = library.Sequential([
        library.layers.Dense(16, "relu", name="hidden"),
        library.layers.LayerNormalization(),
        library.layers.Dropout(dropout, seed=5),
        library.layers.Dense(CLASSES, name="out"),
    ])  # fmt: skip
    model.build((None, FEATURES))
    losses = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    given = {"optimizer": library.optimizers.Adam(0.01), "metrics": ["accuracy"]} | compiled
    model.compile(loss=losses, **given)
    return model


def callbacks(library: Any, folder: str) -> list[Any]:
    path = str(Path(folder) / "best.weights.h5")
    return [
        library.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
        library.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True),
        library.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
    ]


def loops(library: Any, model: Any, count: int) -> dict[str, list[np.ndarray]]:
    """What the loops of a model return, and its weights; the last batch is a small one."""
    x, y = examples(count)
    weights = np.linspace(0.5, 1.5, count).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        history = model.fit(
            x, y, BATCH, 3, 0, callbacks(library, folder), validation_data=(x[:10], y[:10])
        ).history
        weighted = model.fit(x, y, BATCH, 1, 0, sample_weight=weights).history
        model.load_weights(str(Path(folder) / "best.weights.h5"))
    return {
        "history": [np.asarray(history[name]) for name in sorted(history)],
        "weighted": [np.asarray(weighted[name]) for name in sorted(weighted)],
        "evaluated": [np.asarray(model.evaluate(x, y, BATCH, 0))],
        "predicted": [model.predict(x, BATCH, 0)],
        "batches": [
            np.asarray(model.train_on_batch(x[:BATCH], y[:BATCH])),
            np.asarray(model.test_on_batch(x[:BATCH], y[:BATCH])),
            np.asarray(model.predict_on_batch(x[:BATCH])),
        ],
        "weights": model.get_weights(),
    }


def resnet(library: Any) -> Any:
    """Convolutions with batch norms, which are FusedBatchNormV3 in tf_keras, and shortcuts."""
    library.utils.set_random_seed(4)
    layers = library.layers
    inputs = layers.Input((8, 8, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(inputs)))
    for filters, stride in ((4, 1), (8, 2)):
        y = layers.Conv2D(filters, 3, stride, "same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(y))
        y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(y))
        if stride > 1:
            x = layers.BatchNormalization()(layers.Conv2D(filters, 1, stride)(x))
        x = layers.ReLU()(layers.Add()([x, y]))
    model = library.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
    losses = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(library.optimizers.SGD(0.05, momentum=0.9), losses, metrics=["accuracy"])
    return model


def images(library: Any) -> dict[str, Any]:
    """A small ResNet, its batch split; the statistics are those of whole batches."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(3 * BATCH, 8, 8, 3)).astype(np.float32) * 2 + 1
    y = rng.integers(0, CLASSES, 3 * BATCH).astype(np.int32)
    both = {}
    # Messages cost little, so that sums are cheaper than to bring small images together.
    links = {"x": layout.Link(1e-9, 1e-9)}
    for name in ("one", "laid out"):
        model = resnet(library)
        if name == "laid out":
            laid_out = layout.lay_out(model, MESH, mode="data", links=links)
        history = model.fit(x, y, BATCH, 2, 0, shuffle=False).history
        both[name] = {
            "history": [np.asarray(history[key]) for key in ("accuracy", "loss")],
            "evaluated": [np.asarray(model.evaluate(x, y, BATCH, 0))],
            "weights": model.get_weights(),
        }
    (plan,) = laid_out.plans["train"]
    kinds = {
        one.kind: len(strategy.forward)
        for one, strategy in zip(plan.graph.operations, plan.graph.chosen(plan.plan), strict=True)
        if one.kind.startswith("FusedBatchNorm")
    }
    return {
        "different": {key: worst(one, both["laid out"][key]) for key, one in both["one"].items()},
        "sums": kinds,
        "split": sorted(map(str, plan.inputs.values())),
    }


def worst(first: list[Any], second: list[Any]) -> float:
    both = zip(first, second, strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in both)


def fits(library: Any, count: int, **options: Any) -> dict[str, Any]:
    """The loops by plans and on one device; compiled anew, and released."""
    alone, model = model_of(library), model_of(library)
    wanted = loops(library, alone, count)
    if "rules" in options:
        kernel = {"kernel": [None, "hidden"]}
        options["dimensions"] = {model.layers[0]: kernel, "x": ["batch", None]}
    laid_out = layout.lay_out(model, MESH, **options)
    got = loops(library, model, count)
    plans = laid_out.plans
    named = next(name for name in plans["train"][0].variables if name.endswith("hidden/kernel"))
    found = {
        "different": {name: worst(one, wanted[name]) for name, one in got.items()},
        "layouts": {
            step: sorted({str(one.variables[named]) for one in several})
            for step, several in plans.items()
        },
        "batches": {
            step: sorted({one.function.tensors["x"].shape[0] for one in several})
            for step, several in plans.items()
        },
        "split": sorted({
            (one.function.tensors["x"].shape[0], len(one.inputs["x"].splits[0]))
            for one in plans["train"]
        }),
        "fewest": min(len(several) for several in plans.values()),
    }  # fmt: skip
    # Another optimizer, and as many steps in each call as there are.
    x, y = examples(2 * BATCH)
    slots = list(model.optimizer.variables)
    both, begin = {}, alone.get_weights()
    for name, one in (("one", alone), ("laid out", model)):
        one.set_weights(begin)
        one.compile(library.optimizers.SGD(0.1), "mse", metrics=[], steps_per_execution=2)
        y_wide = np.eye(CLASSES, dtype=np.float32)[y]
        history = one.fit(x, y_wide, BATCH, 2, 0, shuffle=False).history["loss"]
        both[name] = [np.asarray(history), one.predict(x, BATCH, 0), *one.get_weights()]
    found["again"] = worst(both["one"], both["laid out"])
    found["old slots"] = sorted({type(_inner(one)).__name__ for one in slots})
    # The second variable fails; then all can be done again.
    release, count = variables.release, itertools.count()
    variables.release = lambda one: release(one) if next(count) != 1 else {}["second"]
    with contextlib.suppress(KeyError):
        laid_out.release()
    found["releasing"] = sum(type(_inner(one)).__name__.startswith("L") for one in model.weights)
    variables.release = release
    laid_out.release()
    laid_out.release()
    kinds = {type(_inner(one)).__name__ for one in model.weights}
    found["released"] = [sorted(kinds), worst(
        model.fit(x, y_wide, BATCH, 1, 0, shuffle=False).history["loss"],
        alone.fit(x, y_wide, BATCH, 1, 0, shuffle=False).history["loss"],
    )]  # fmt: skip
    return found


def constants(library: Any) -> dict[str, Any]:
    """An optimizer with a variable that begins as a number, made in the first step."""
    x, y = examples(2 * BATCH)
    both = {}
    for name in ("one", "laid out"):
        model = model_of(library, optimizer=library.optimizers.Nadam(0.01))
        model.evaluate(x, y, BATCH, 0)  # makes the metrics' variables in a function
        if name == "laid out":
            layout.lay_out(model, MESH, mode="data")
        history = model.fit(x, y, BATCH, 2, 0, shuffle=False).history["loss"]
        slots = [np.asarray(one) for one in model.optimizer.variables]
        both[name] = [np.asarray(history), *slots, *model.get_weights()]
    return {"different": worst(both["one"], both["laid out"]), "values": len(both["one"])}


def _inner(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else variable.value


def told(action: Any) -> str:
    try:
        action()
    except layout.LayoutError as error:
        return str(error)
    return "nothing"


def errors(library: Any) -> dict[str, str]:
    """What is said of what cannot run; and a step that is planned before it runs."""
    x, y = examples(BATCH)
    model = model_of(library)
    found = {
        "no model": told(lambda: layout.lay_out("a model", MESH)),
        "option": told(lambda: layout.lay_out(model, MESH, mods="data")),
    }
    laid_out = layout.lay_out(model, MESH, mode="data")
    specs = tf.TensorSpec([BATCH, FEATURES]), tf.TensorSpec([BATCH], tf.int32)
    plan = laid_out.plan("train", specs)
    model.fit(x, y, BATCH, verbose=0)
    found |= {
        "planned": str(laid_out.plans["train"] == (plan,)),
        "running": told(lambda: laid_out.plan("train", specs)),
        "twice": told(lambda: layout.lay_out(model, MESH)),
        "step": told(lambda: laid_out.plan("fit", specs)),
        "parts": told(lambda: laid_out.plan("train", (*specs, None, None))),
        "sparse": told(lambda: laid_out.plan("train", tf.sparse.from_dense(x))),
    }
    model.compile(model.optimizer, model.loss, run_eagerly=True)
    found["eager"] = told(lambda: model.fit(x, y, BATCH, verbose=0))
    other = layout.lay_out(model_of(library), MESH, mode="data")
    found["uneven"] = told(lambda: other.model.fit(x[:5], y[:5], BATCH, verbose=0))
    other.release()
    found["released"] = told(lambda: other.plan("train", specs))
    return found


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    what = sys.argv[1]
    if what in ("images", "tf_keras"):
        import tf_keras as library
    else:
        import keras as library
    cases = {
        "constants": lambda: constants(library),
        "data": lambda: fits(library, 21, mode="data"),
        "errors": lambda: errors(library),
        "images": lambda: images(library),
        "rules": lambda: fits(library, 22, mode="propagate", rules="hidden:x"),
        "tf_keras": lambda: fits(library, 21, mode="data"),
    }
    scripted.give(cases[what]())


if __name__ == "__main__":
    main()
