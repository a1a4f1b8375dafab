# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs plans that split height and width on logical CPU devices, and gives what came of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted
from tests.unit.layout.execution.executions import distance
from tf_fuse import layout
from tf_fuse.layout.cost.model import Rates

FOUR, SQUARE = layout.Mesh({"x": 4}), layout.Mesh({"x": 2, "y": 2})
# The rows of an image, then a window, its step and padding.
GEOMETRIES: tuple[tuple[int, int, int, Any], ...] = (
    (8, 3, 1, "SAME"),
    (8, 2, 1, "SAME"),
    (16, 5, 1, "SAME"),
    (16, 3, 2, "SAME"),
    (16, 5, 2, "SAME"),
    (8, 1, 2, "SAME"),
    (12, 5, 1, "VALID"),
    (10, 3, 2, "VALID"),
    (8, 4, 1, [[0, 0], [2, 1], [0, 3], [0, 0]]),
    (16, 3, 2, [[0, 0], [1, 1], [1, 1], [0, 0]]),
    # Windows follow one another, but not from the first row on.
    (8, 2, 2, [[0, 0], [1, 0], [1, 0], [0, 0]]),
)


def real(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).normal(size=shape).astype(np.float32)


def forward(kind: str, step: int, padding: Any, *inputs: Any) -> Any:
    if kind == "Conv2D":
        return tf.nn.conv2d(*inputs, step, padding)
    return tf.nn.depthwise_conv2d(*inputs, [1, step, step, 1], padding)


def pooled(kind: str, length: int, step: int, padding: Any, x: Any) -> Any:
    pool = tf.nn.max_pool2d if kind == "MaxPool" else tf.nn.avg_pool2d
    return pool(x, length, step, padding)


def gradient(function: Any, which: int, *inputs: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = function(*inputs)
        # Slopes that differ from place to place.
        slopes = tf.cast(tf.range(tf.size(y)) % 7 - 2, y.dtype)
        loss = tf.reduce_sum(y * tf.reshape(slopes, y.shape))
    return tape.gradient(loss, inputs)[which]


def cases(geometry: int) -> Iterator[tuple[str, Any, list[np.ndarray]]]:
    """Kind and geometry; a function; its arguments."""
    rows, length, step, padding = GEOMETRIES[geometry]
    x = real(1, rows, rows, 2)
    words = f"{rows} rows, {length} by {step}, {padding}"
    for kind, back, count in (
        ("Conv2D", "Conv2DBackprop", 3),
        ("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackprop", 2),
    ):
        function = functools.partial(forward, kind, step, padding)
        args = [x, real(length, length, 2, count)]
        yield f"{kind}: {words}", function, args
        yield f"{back}Input: {words}", functools.partial(gradient, function, 0), args
        yield f"{back}Filter: {words}", functools.partial(gradient, function, 1), args
    for kind in ("MaxPool", "AvgPool"):
        if kind == "MaxPool" or isinstance(padding, str):
            function = functools.partial(pooled, kind, length, step, padding)
            yield f"{kind}: {words}", function, [x]
            yield f"{kind}Grad: {words}", functools.partial(gradient, function, 0), [x]


def named(*names: str) -> Iterator[tuple[str, Any, list[np.ndarray]]]:
    """The cases of some geometries; of each by its number, and after a slash the kinds, if some."""
    for name in names:
        number, _, kinds = name.partition("/")
        for case in cases(int(number)):
            if not kinds or case[0].partition(":")[0] in kinds.split("+"):
                yield case


def is_in_rows(strategy: Any) -> bool:
    return any(one.factor in ("height", "width") for one in strategy.choices)


# In four parts, and in two by two with corners.
ROWS = "split height"
WAYS = ((FOUR, ROWS), (SQUARE, "split width, split height"))


def operations(*names: str) -> dict[str, Any]:
    """Each operation, split by height and width: how often, the distance, and exchanged bytes."""
    found: dict[str, Any] = {}
    for name, function, args in named(*names):
        wanted = tf.function(function)(*map(tf.constant, args))
        count, worst, moved = 0, 0.0, 0
        for mesh, way in WAYS:
            problem = layout.function_problem(function, mesh, list(map(tf.constant, args)))
            graph = problem.graph
            kind = name.partition(":")[0]
            target = next(i for i, one in enumerate(graph.operations) if one.kind == kind)
            for strategy in graph.strategies[target]:
                if str(strategy) != way:
                    continue
                constraints = {graph.operations[target].name: way}
                run = layout.execute(problem.search("propagate", constraints=constraints))
                worst = max(worst, distance(run(*args), wanted))
                both = run.traffic.received_bytes, run.program.received_bytes
                assert both[0] == both[1], (name, str(strategy), both)
                moved += sum(one.received_bytes for one in strategy.forward)
                count += 1
        found[name] = [count, worst, moved]
    return found


def rates(mesh: layout.Mesh) -> Rates:
    return Rates(mesh, dict.fromkeys(mesh.axes, layout.Link(1e-9, 1e-12)), 1e-9)


def descent(weights: list[Any]) -> Any:
    """A step of two convolutions."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.conv2d(x, weights[0], 1, "SAME"))
            loss = tf.reduce_mean(tf.square(tf.nn.conv2d(y, weights[1], 2, "SAME")))
        for one, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            one.assign_sub(0.1 * slope)
        return loss

    return step


def search() -> dict[str, Any]:
    """Two convolutions of one large image, and of eight small ones, by what is cheapest."""
    found: dict[str, Any] = {}
    for name, shape in (("large", (1, 64, 64, 8)), ("many", (8, 8, 8, 8))):
        weights = [tf.Variable(real(3, 3, 8, 8) * 0.1, name=one) for one in "ab"]
        step = descent(weights)
        x = real(*shape)
        begin = [one.numpy() for one in weights]
        stock = tf.function(step)
        wanted = [stock(tf.constant(x)) for _ in range(3)] + [one.numpy() for one in weights]
        for one, value in zip(weights, begin, strict=True):
            one.assign(value)
        plan = layout.plan(step, FOUR, [tf.TensorSpec(shape)], rates=rates(FOUR))
        run = layout.execute(plan)
        got = [run(x) for _ in range(3)] + [one.numpy() for one in weights]
        chosen = zip(plan.graph.operations, plan.graph.chosen(plan.plan), strict=True)
        found[name] = {
            "different": max(map(distance, got, wanted)),
            "chosen": sorted({str(how) for one, how in chosen if one.kind.startswith("Conv2D")}),
            "planned": run.program.received_bytes == run.traffic.received_bytes > 0,
        }
        run.release()
    return found


def residual() -> dict[str, Any]:
    """A small ResNet of one image, whose height is split wherever it can be, or where it pays."""
    import keras

    layers = keras.layers
    x, label = real(1, 32, 32, 3), np.array([2], np.int32)

    def model_of() -> Any:
        keras.utils.set_random_seed(6)
        inputs = layers.Input((32, 32, 3), batch_size=1)
        y = layers.Conv2D(8, 7, 2, "same", use_bias=False)(inputs)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.MaxPooling2D(3, 2, "same")(y)
        z = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(y)))
        z = layers.DepthwiseConv2D(3, padding="same")(z)
        y = layers.ReLU()(layers.Add()([y, z]))
        y = layers.AveragePooling2D(3, 1, "same")(y)
        y = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 1, 2)(y))
        return keras.Model(inputs, layers.Dense(5)(y))

    def step_of(model: Any) -> Any:
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)

        def step(x: Any, label: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = losses(label, model(x, training=True))
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return step

    alone = model_of()
    stock = tf.function(step_of(alone))
    wanted = [float(stock(tf.constant(x), tf.constant(label))) for _ in range(4)]
    found: dict[str, Any] = {"falls": wanted[0] - wanted[-1]}
    specs = [tf.TensorSpec(x.shape), tf.TensorSpec([1], tf.int32)]
    for mode in ("constraints", "auto"):
        model = model_of()
        problem = layout.function_problem(step_of(model), FOUR, specs, rates=rates(FOUR))
        constraints = {}
        if mode == "constraints":
            both = zip(problem.graph.operations, problem.graph.strategies, strict=True)
            constraints = {one.name: ROWS for one, mine in both if ROWS in map(str, mine)}
        plan = problem.search("propagate" if constraints else "auto", constraints=constraints)
        run = layout.execute(plan)
        got = [float(run(x, label)) for _ in range(4)]
        chosen = zip(plan.graph.operations, plan.graph.chosen(plan.plan), strict=True)
        found[mode] = {
            "losses": max(abs(a - b) for a, b in zip(got, wanted, strict=True)),
            "weights": max(
                distance(one.numpy(), other.numpy())
                for one, other in zip(model.weights, alone.weights, strict=True)
            ),
            "in rows": sorted({one.kind for one, how in chosen if one.inputs and is_in_rows(how)}),
            "planned": run.program.received_bytes == run.traffic.received_bytes,
        }
        run.release()
    return found


def main() -> None:
    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    programs = {"operations": operations, "residual": residual, "search": search}
    what, *given = sys.argv[1].split()
    scripted.give(programs[what](*given))


if __name__ == "__main__":
    main()
