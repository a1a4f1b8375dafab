# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Step graphs of models count what TensorFlow's partitioner and the pass make."""

import pytest
import tensorflow as tf

from benchmarks.scale import models
from tf_fuse.cli.load import model as load_model
from tf_fuse.scale.steps import placement
from tf_fuse.scale.steps.trace import recorded_variables, trace


@pytest.fixture(scope="module")
def features():
    return load_model.load("benchmarks.scale.models:features", 64)


def test_300_tables_take_904_receives_and_fused_6(features):
    # A job counts one more of each: its step has one receive outside of the function.
    stock, fused = features.on(2)
    assert (stock.rpcs, fused.rpcs) == (904, 6)
    assert stock.bytes == fused.bytes
    # Keys of 64 numbers; rows and their gradients; the layer's weights and their gradient.
    assert stock.bytes == 300 * 64 * 4 + 2 * 300 * 64 * 16 * 4 + 2 * 4800 * 4


def test_receives_are_those_of_the_partitions(features):
    rewrite = placement.place(
        features.graph,
        {h: at for h, at in zip(features.handles, features.places(3), strict=True) if h},
        features.places(3),
    )
    for partitions, graph in zip((rewrite.before, rewrite.after), features.on(3), strict=True):
        ops = [node.op for partition in partitions.values() for node in partition.node]
        assert graph.rpcs == ops.count("_Recv") + ops.count("_FuseRecv")


def test_each_server_has_its_lookups_and_updates(features):
    stock, fused = features.on(2)
    # 150 gathers and 150 scatters; one server also reads and updates the layer's weights.
    assert stock.work_of(["ps:0"]).variable_operations == 302
    assert stock.work_of(["ps:1"]).variable_operations == 300
    assert fused.work_of(["ps:1"]).members == 300
    assert fused.work_of(["ps:1"]).operations == 2
    assert stock.handles_of("ps:1") == 150


def test_modes_fuse_one_thing_after_the_other(features):
    found = features.variants(2)
    assert list(found) == ["stock", "receives", "fused", "sharded"]
    assert found["receives"].rpcs == found["fused"].rpcs == 6
    # Lookups and updates of a server are 300 operations, and in the next mode two.
    assert found["receives"].work_of(["ps:1"]).variable_operations == 300
    assert found["fused"].work_of(["ps:1"]).operations == 2


def test_even_parts_have_the_same_bytes(features):
    fused, sharded = (features.variants(3)[mode] for mode in ("fused", "sharded"))
    assert sharded.bytes == pytest.approx(fused.bytes)
    parts = [sharded.work_of([f"ps:{i}"]) for i in range(3)]
    assert parts[0] == parts[1] == parts[2]
    whole = [fused.work_of([f"ps:{i}"]) for i in range(3)]
    assert parts[0].variable_bytes == pytest.approx(sum(one.variable_bytes for one in whole) / 3)
    assert parts[0].members == sum(one.members for one in whole)


def test_a_product_counts_its_operations():
    with recorded_variables() as variables:
        weight = tf.Variable(tf.ones([8, 4]))
    step = trace("product", lambda x: x @ weight, (tf.ones([16, 8]),), variables)
    stock, _ = step.on(1)
    assert stock.work_of(["worker"]).flops == 2 * 16 * 8 * 4
    assert stock.bytes == 8 * 4 * 4


def test_products_that_grappler_fuses_count():
    traced = load_model.load("benchmarks.scale.models:dense", 64)
    stock, _ = traced.on(1)
    # Twelve layers of 512 units, forward and back, but for the gradient of the input; and the head.
    assert stock.work_of(["worker"]).flops == 35 * 2 * 64 * 512 * 512 + 3 * 2 * 64 * 512


def _inside(variable):
    return variable if hasattr(variable, "handle") else variable.value


def test_slots_lie_beside_their_weights():
    with recorded_variables() as variables:
        weights = [tf.Variable(tf.ones([4])) for _ in range(3)]
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(weights)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(one * x) for one in weights])
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    traced = trace("momentum", step, (tf.ones([4]),), variables)
    places = traced.places(2)
    for slot, weight in variables.references:
        at = [
            next(i for i, one in enumerate(variables) if one.handle is _inside(v).handle)
            for v in (slot, weight)
        ]
        assert places[at[0]] == places[at[1]]
    assert len(variables.references) == 3


def test_a_program_may_ask_a_variable_for_its_device():
    traced = load_model.load("benchmarks.scale.models:rfc", 64)
    stock, _ = traced.on(3)
    assert {segment.task for segment in stock.segments} == {"worker", "ps:0", "ps:1", "ps:2"}


def test_the_models_are_the_examples():
    assert sorted(models.SPECS) == ["dense", "features", "mixed", "rfc"]
