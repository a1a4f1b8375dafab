# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates that take rows of a gradient where stock makes it dense have stock's bits."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.fuse_update.fused_updates import bits, clusters, outlines_of
from tf_fuse.v1 import update_pb2

_OPTIMIZERS = {
    "Adam": {},
    "AdamW": {"weight_decay": 0.01},
    "Adamax": {},
    "Ftrl": {},
    "Lion": {},
    "Nadam": {},
    "SGD": {"momentum": 0.9},
    "amsgrad": {"amsgrad": True},
}


def _optimizer(name):
    kind = {"amsgrad": "Adam"}.get(name, name)
    return getattr(tf.keras.optimizers, kind)(0.01, **_OPTIMIZERS[name])


def _trained(name, shape, ids, dtype="float32", index="int64", steps=3):
    """The variables after some steps with rows of random numbers."""
    rng = np.random.default_rng(3)
    weight = tf.Variable(rng.standard_normal(shape), dtype=dtype)
    optimizer = _optimizer(name)
    optimizer.build([weight])

    @tf.function(autograph=False)
    def step(values, indices):
        gradient = tf.IndexedSlices(values, indices, tf.constant(shape))
        optimizer.apply_gradients([(gradient, weight)])

    for number in range(steps):
        values = rng.standard_normal([len(ids), *shape[1:]])
        indices = np.asarray(ids, index) + (number if len(ids) and max(ids) + 2 < shape[0] else 0)
        step(tf.constant(values, dtype), tf.constant(indices, index))
    return [tf.convert_to_tensor(v).numpy() for v in [weight, *optimizer.variables]]


def _programs(outlines):
    """Of all operations that take rows: what happens to these before they are added."""
    found = []
    for one in outlines:
        nodes = one.function.node_def if one.function else []
        for node in nodes:
            if node.op == "TfFuse>ElementwiseUpdate":
                program = update_pb2.UpdateProgram.FromString(node.attr["program"].s)
                found.append([each.op for each in program.row_sums])
    return [ops for ops in found if ops]


def _compare(*args, **kwargs):
    stock = _trained(*args, **kwargs)
    ours, outlines = outlines_of(lambda: _trained(*args, **kwargs))
    assert bits(ours) == bits(stock)
    assert clusters(outlines) >= 1
    return _programs(outlines)


# Of repeated and missing rows, before, at and after the edges of blocks of 512 elements.
_IDS = [7, 0, 7, 63, 64, 7, 31, 32, 99, 7]


@pytest.mark.parametrize("name", sorted(_OPTIMIZERS))
def test_optimizers(name):
    of_gradient = {"Adamax": "Abs", "Lion": "", "SGD": ""}.get(name, "Square")
    (program,) = _compare(name, [101, 8], _IDS)
    assert set(program) == {"", of_gradient}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_types(dtype):
    assert _compare("Adam", [101, 8], _IDS, dtype=dtype)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(
    ("shape", "ids"),
    [
        ([5, 1], [4, 0, 4]),
        ([1, 3], [0, 0]),
        ([7, 1000], [6, 3, 3, 0]),
        ([3000, 2], [2999, 0, 256, 255]),
        ([600], [0, 511, 512, 599, 512]),
        ([9, 4, 5], [8, 1, 8]),
        ([9, 4], []),
        ([9, 4], [-1, 3, -7]),
    ],
)
def test_shapes(shape, ids, index):
    assert _compare("Adam", shape, ids, index=index) == [["", "Square"]]


def test_zeros_and_what_is_not_finite():
    """TensorFlow adds to a zero, so that a negative zero becomes a positive one."""

    def trained():
        slot = tf.Variable(tf.fill([6, 2], -0.0))
        weight = tf.Variable(tf.ones([6, 2]))

        @tf.function(autograph=False)
        def step(values, indices):
            dense = tf.math.unsorted_segment_sum(values, indices, 6)
            slot.assign(slot * 0.5 + dense)
            weight.assign_sub(slot * 0.1)
            weight.assign(tf.minimum(weight, dense))

        step(
            tf.constant([[-0.0, np.inf], [np.nan, -0.0], [-np.inf, 1e-45]]), tf.constant([1, 2, 1])
        )
        return [slot.numpy(), weight.numpy()]

    stock = trained()
    ours, outlines = outlines_of(trained)
    assert _programs(outlines) == [[""]]
    assert bits(ours) == bits(stock)


@pytest.mark.parametrize("returns", [True, False])
def test_a_sum_that_something_else_reads_stays(returns):
    def trained():
        slot, weight = (tf.Variable(tf.ones([6, 2])) for _ in range(2))

        @tf.function(autograph=False)
        def step(values, indices):
            dense = tf.math.unsorted_segment_sum(values, indices, 6)
            slot.assign(slot * 0.5 + dense)
            weight.assign_sub(slot * 0.1)
            return tf.roll(dense, 1, 0) if returns else None

        return [step(tf.ones([2, 2]), tf.constant([1, 1])), slot.numpy(), weight.numpy()]

    stock = trained()
    ours, outlines = outlines_of(trained)
    assert _programs(outlines) == ([] if returns else [[""]])
    assert bits(ours[1:]) == bits(stock[1:])
    assert ours[0] is None or bits(ours[:1]) == bits(stock[:1])


def test_two_sums_of_one_tensor_with_other_numbers():
    def trained():
        slot, weight = (tf.Variable(tf.ones([6, 2])) for _ in range(2))

        @tf.function(autograph=False)
        def step(values, first, second):
            slot.assign(slot * 0.5 + tf.math.unsorted_segment_sum(values, first, 6))
            weight.assign_sub(slot * tf.math.unsorted_segment_sum(-values, second, 6))

        rows = tf.constant([[1.5, 2.5], [3.25, -4.0]])
        step(rows, tf.constant([1, 1]), tf.constant([5, 1], tf.int64))
        return [slot.numpy(), weight.numpy()]

    stock = trained()
    ours, outlines = outlines_of(trained)
    assert _programs(outlines) == [["", "Neg"]]
    assert bits(ours) == bits(stock)


@pytest.mark.parametrize("row", [6, 2**31 - 1])
def test_a_row_that_is_not_there(row):
    """The error is TensorFlow's, and no variable changes."""

    def told():
        weight = tf.Variable(tf.ones([6, 2]))
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build([weight])

        @tf.function(autograph=False)
        def step(values, indices):
            optimizer.apply_gradients([(tf.IndexedSlices(values, indices, [6, 2]), weight)])

        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            step(tf.ones([2, 2]), tf.constant([1, row]))
        text = error.value.message
        text = text[text.index("segment_ids") :].split("\n")[0]
        return text, [v.numpy().tolist() for v in [weight, *optimizer.variables[2:]]]

    stock = told()
    ours, outlines = outlines_of(told)
    assert _programs(outlines) == [[""]]
    assert stock[0].startswith(f"segment_ids[1] = {row} is out of range [0, 6)")
    assert ours == stock


@pytest.mark.parametrize("last", [3, 6])  # (A shape is wrong, also if a number is.)
def test_rows_and_numbers_that_do_not_fit(last):
    """Shapes that are known only when the step runs."""

    def told():
        slot, weight = (tf.Variable(tf.ones([6, 2])) for _ in range(2))
        kinds = [tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int32)]

        @tf.function(input_signature=kinds, autograph=False)
        def step(values, indices):
            slot.assign(slot * 0.5 + tf.math.unsorted_segment_sum(values, indices, 6))
            weight.assign_sub(slot * 0.1)

        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            step(tf.ones([2, 2]), tf.constant([1, 2, last]))
        text = error.value.message
        return text[text.index("data.shape") :].split("\n")[0], slot.numpy().tolist()

    stock = told()
    ours, outlines = outlines_of(told)
    assert _programs(outlines) == [[""]]
    assert stock[0] == "data.shape = [2,2] does not start with segment_ids.shape = [3]"
    assert ours == stock
