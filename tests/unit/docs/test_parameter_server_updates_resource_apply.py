# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of TensorFlow's update operations have the bits of a Keras 3 optimizer's chain.

Why updates become an operation of tf_fuse all the same: docs/parameter_server_updates.md.
"""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import pytest
import tensorflow as tf

_ELEMENTS, _STEPS = 4099, 3
_RATE = 0.01
_raw = tf.raw_ops


def _float(value):
    return tf.constant(value, tf.float32)


def _sgd(step, weight, gradient):
    _raw.ResourceApplyGradientDescent(var=weight, alpha=_float(_RATE), delta=gradient)


def _momentum(nesterov):
    def update(step, weight, momentum, gradient):
        _raw.ResourceApplyKerasMomentum(
            var=weight, accum=momentum, lr=_float(_RATE), grad=gradient, momentum=_float(0.9),
            use_nesterov=nesterov,
        )  # fmt: skip

    return update


def _adam(step, weight, momentum, velocity, gradient):
    powers = [tf.pow(_float(beta), _float(step)) for beta in (0.9, 0.999)]
    _raw.ResourceApplyAdam(
        var=weight, m=momentum, v=velocity, beta1_power=powers[0], beta2_power=powers[1],
        lr=_float(_RATE), beta1=_float(0.9), beta2=_float(0.999), epsilon=_float(1e-7),
        grad=gradient,
    )  # fmt: skip


def _adamax(step, weight, momentum, norm, gradient):
    _raw.ResourceApplyAdaMax(
        var=weight, m=momentum, v=norm, beta1_power=tf.pow(_float(0.9), _float(step)),
        lr=_float(_RATE), beta1=_float(0.9), beta2=_float(0.999), epsilon=_float(1e-7),
        grad=gradient,
    )  # fmt: skip


def _adagrad(step, weight, accumulator, gradient):
    # (Its epsilon is added to the root.)
    _raw.ResourceApplyAdagradV2(
        var=weight, accum=accumulator, lr=_float(_RATE), epsilon=_float(1e-7), grad=gradient
    )


def _adadelta(step, weight, gradients, deltas, gradient):
    _raw.ResourceApplyAdadelta(
        var=weight, accum=gradients, accum_update=deltas, lr=_float(_RATE), rho=_float(0.95),
        epsilon=_float(1e-7), grad=gradient,
    )  # fmt: skip


def _rmsprop(step, weight, velocity, gradient):
    momentum = tf.Variable(tf.zeros([_ELEMENTS]))
    _raw.ResourceApplyRMSProp(
        var=weight, ms=velocity, mom=momentum.handle, lr=_float(_RATE), rho=_float(0.9),
        momentum=_float(0.0), epsilon=_float(1e-7), grad=gradient,
    )  # fmt: skip


def _ftrl(l1, l2):
    def update(step, weight, accumulator, linear, gradient):
        _raw.ResourceApplyFtrlV2(
            var=weight, accum=accumulator, linear=linear, grad=gradient, lr=_float(_RATE),
            l1=_float(l1), l2=_float(l2), l2_shrinkage=_float(0.0), lr_power=_float(-0.5),
        )  # fmt: skip

    return update


# Of each optimizer its options, TensorFlow's operation, and whether that has all of its bits.
_CASES = {
    "Adadelta": ({}, _adadelta, False),
    "Adagrad": ({}, _adagrad, False),
    "Adam": ({}, _adam, False),
    "Adamax": ({}, _adamax, False),
    "Ftrl": ({}, _ftrl(0.0, 0.0), True),
    "Ftrl l1 l2": (
        {"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.3},
        _ftrl(0.1, 0.3),
        True,
    ),
    "RMSprop": ({}, _rmsprop, False),
    "SGD": ({}, _sgd, True),
    "SGD momentum": ({"momentum": 0.9}, _momentum(False), True),
    "SGD nesterov": ({"momentum": 0.9, "nesterov": True}, _momentum(True), True),
}


def _ordered(value):
    bits = value.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _differences(name):
    """By how many units in the last place the weights differ at most after some steps."""
    options, operation, _ = _CASES[name]
    rng = np.random.default_rng(5)
    first = rng.standard_normal(_ELEMENTS).astype("float32")
    gradients = rng.standard_normal([_STEPS, _ELEMENTS]).astype("float32")
    theirs, ours = tf.Variable(first), tf.Variable(first)
    optimizer = getattr(keras.optimizers, name.split()[0])(_RATE, **options)
    optimizer.build([theirs])
    slots = [one for one in optimizer.variables if tuple(one.shape) == (_ELEMENTS,)]
    copies = [tf.Variable(tf.convert_to_tensor(slot)) for slot in slots]

    @tf.function(autograph=False)
    def chain(gradient):
        optimizer.apply_gradients([(gradient, theirs)])

    for step, gradient in enumerate(gradients, 1):
        chain(tf.constant(gradient))
        handles = [one.handle for one in (ours, *copies)]
        operation(step, *handles, tf.constant(gradient))
    return int(np.max(np.abs(_ordered(ours.numpy()) - _ordered(theirs.numpy()))))


@pytest.mark.parametrize("name", sorted(_CASES))
def test_differences(name):
    found = _differences(name)
    print(f"{name}: {found} ulps")
    assert (found == 0) == _CASES[name][2]
