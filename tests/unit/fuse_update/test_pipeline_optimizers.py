# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose updates are one operation each have the bits of stock TensorFlow."""

import itertools
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_cases import slow_but
from tests.unit.fuse_update.fused_updates import bits, clusters, outlines_of, reasons
from tf_fuse.fuse_update import outline

_SHAPES = ([2048], [5, 7, 3], [1], [3, 1])


def _keras(name, **args):
    return lambda: getattr(tf.keras.optimizers, name)(0.01, **args)


def _tf_keras(name, legacy=False, **args):
    def make():
        import tf_keras

        module = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers
        return getattr(module, name)(0.01, **args)

    return make


def _variables_of(optimizer):
    found = optimizer.variables
    return found() if callable(found) else found


def _trained(make, returns, shapes=_SHAPES, dtype="float32", steps=3):
    """All variables after some steps."""
    rng = np.random.default_rng(7)
    weights = [tf.Variable(rng.standard_normal(shape), dtype=dtype) for shape in shapes]
    optimizer = make()
    if hasattr(optimizer, "build"):
        optimizer.build(weights)

    @tf.function(autograph=False)
    def step(*gradients):
        optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))
        return gradients[0][0] if returns else None

    for _ in range(steps):
        step(*[tf.constant(rng.standard_normal(shape), dtype) for shape in shapes])
    return [tf.convert_to_tensor(v).numpy() for v in [*weights, *_variables_of(optimizer)]]


_MAKERS = {
    **{
        f"keras {name}": _keras(name)
        for name in (
            "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Lion",
            "Ftrl", "Lamb", "Adafactor",
        )
    },
    **{
        f"tf_keras {name}": _tf_keras(name)
        for name in (
            "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Lion",
            "Ftrl", "Adafactor",
        )
    },
    "keras momentum": _keras("SGD", momentum=0.9),
    "keras nesterov": _keras("SGD", momentum=0.9, nesterov=True),
    "keras amsgrad": _keras("Adam", amsgrad=True),
    "keras centered": _keras("RMSprop", centered=True, momentum=0.9),
    "keras clipvalue": _keras("Adam", clipvalue=0.5, weight_decay=0.1),
    "keras clipnorm": _keras("Adam", clipnorm=0.5),
    "keras global_clipnorm": _keras("SGD", global_clipnorm=0.5, momentum=0.9),
    "keras ema": _keras("Adam", use_ema=True, ema_overwrite_frequency=2),
    "tf_keras ema": _tf_keras("SGD", use_ema=True, momentum=0.9, jit_compile=False),
}  # fmt: skip


# Of all optimizers, those that are not slow; and those with a step that returns nothing.
_FAST = {
    *(f"keras {name}" for name in ("Adafactor", "Adam", "AdamW", "Ftrl", "Lion", "SGD")),
    *(f"keras {name}" for name in ("centered", "clipnorm", "clipvalue", "ema", "nesterov")),
    *(f"tf_keras {name}" for name in ("Adadelta", "Adam", "Nadam", "RMSprop", "SGD")),
}
_FAST_WITHOUT_RESULT = {"keras Adam", "keras SGD", "tf_keras Adam"}


def _is_fast(case):
    name, returns = case
    return name in (_FAST if returns else _FAST_WITHOUT_RESULT)


@pytest.mark.parametrize(
    ("name", "returns"), slow_but(itertools.product(sorted(_MAKERS), [True, False]), _is_fast)
)
def test_optimizers(name, returns):
    stock = _trained(_MAKERS[name], returns)
    ours, outlines = outlines_of(lambda: _trained(_MAKERS[name], returns))
    assert bits(ours) == bits(stock)
    if name not in _LEFT:
        assert clusters(outlines) >= 2, reasons(outlines)
    assert reasons(outlines) <= outline.REASONS.keys()


# Grappler looks from the update into the scaling of the gradient.
_LEFT = {"keras clipnorm", "keras global_clipnorm"}


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize(
    "name",
    slow_but(
        ["keras Adam", "keras AdamW", "keras Adamax", "keras clipnorm"],
        {"keras Adam", "keras clipnorm"}.__contains__,
    ),
)
def test_one_weight(name, shape, returns):
    """Without others, Grappler sees that nothing else reads a rate."""
    stock = _trained(_MAKERS[name], returns, [shape])
    ours, outlines = outlines_of(lambda: _trained(_MAKERS[name], returns, [shape]))
    assert bits(ours) == bits(stock)
    assert clusters(outlines) == (shape != [1] and name not in _LEFT)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "name", slow_but(["SGD", "Adam", "RMSprop", "Adamax"], {"SGD", "Adam"}.__contains__)
)
def test_types(name, dtype):
    stock = _trained(_keras(name), True, dtype=dtype)
    ours, outlines = outlines_of(lambda: _trained(_keras(name), True, dtype=dtype))
    assert bits(ours) == bits(stock)
    assert reasons(outlines) <= outline.REASONS.keys()


@pytest.mark.parametrize(
    ("name", "fused"), [("Adam", 0), ("SGD", 0), ("RMSprop", 3), ("Adagrad", 0)]
)
def test_legacy_optimizers(name, fused):
    """Most have one operation already."""
    make = _tf_keras(name, legacy=True)
    stock = _trained(make, True)
    ours, outlines = outlines_of(lambda: _trained(make, True))
    assert bits(ours) == bits(stock)
    assert clusters(outlines) == fused


@pytest.mark.parametrize("name", ["Adam", "GradientDescent", "Momentum", "RMSProp"])
def test_optimizers_of_tensorflow_1(name):
    args = {"momentum": 0.9} if name == "Momentum" else {}

    def trained():
        rng = np.random.default_rng(3)
        w = tf.Variable(rng.standard_normal(100), dtype=tf.float32)
        optimizer = getattr(tf.compat.v1.train, f"{name}Optimizer")(0.01, **args)

        @tf.function(autograph=False)
        def step(gradient):
            optimizer.apply_gradients([(gradient, w)])

        for _ in range(3):
            step(tf.constant(rng.standard_normal(100), tf.float32))
        return [v.numpy() for v in [w, *optimizer.variables()]]

    stock = trained()
    ours, _ = outlines_of(trained)
    assert bits(ours) == bits(stock)


def test_the_loss_scale_optimizer():
    def trained():
        rng = np.random.default_rng(3)
        w = tf.Variable(rng.standard_normal([4, 5]), dtype=tf.float32)
        inner = tf.keras.optimizers.Adam(0.01)
        optimizer = tf.keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2)
        optimizer.build([w])
        step = tf.function(lambda g: optimizer.apply([g], [w]), autograph=False)
        for i in range(5):
            gradient = rng.standard_normal([4, 5]) * 1e4
            gradient[0, 0] = np.inf if i == 2 else 1.0
            step(tf.constant(gradient, tf.float32))
        return [tf.convert_to_tensor(v).numpy() for v in [w, *optimizer.variables]]

    stock = trained()
    ours, outlines = outlines_of(trained)
    assert bits(ours) == bits(stock)
    assert reasons(outlines) <= outline.REASONS.keys()


def test_frozen_weights():
    def trained():
        keras = tf.keras
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(4)])
        model.build([None, 6])
        model.layers[0].trainable = False
        model.compile("adam", "mse", steps_per_execution=2)
        rng = np.random.default_rng(3)
        x, y = rng.standard_normal([16, 6]), rng.standard_normal([16, 4])
        model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
        return [*model.get_weights(), *[np.asarray(v) for v in model.optimizer.variables]]

    stock = trained()
    ours, outlines = outlines_of(trained)
    assert bits(ours) == bits(stock)
    assert clusters(outlines) >= 2


@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}],
)
@pytest.mark.parametrize("on", [False, True])
def test_keras_cannot_update_replicas_in_a_branch(options, on):
    # (When this fails, Keras can, and docs/weight_update.md is out of date.)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        weight = tf.Variable(tf.ones([4]))
        optimizer = tf.keras.optimizers.SGD(0.1, **options)
        optimizer.build([weight])

    @tf.function(autograph=False)
    def step():
        strategy.run(lambda: optimizer.apply_gradients([(tf.ones([4]), weight)]))

    tf.config.optimizer.set_experimental_options({"shard_weight_update": on})
    try:
        with pytest.raises(RuntimeError, match="`merge_call` called while defining a new graph"):
            step()
    finally:
        tf.config.optimizer.set_experimental_options({"shard_weight_update": False})
