# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of Keras 3's embeddings are gathered on the servers: bytes, bits, gradients, errors."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_ROWS, _WIDTH = 30_000, 8
_KINDS = ["whole", "pieces"]


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize("kind", _KINDS)
def test_only_rows_travel(cases, kind):
    stock, ours = cases[f"stock_{kind}"], cases[f"ours_{kind}"]
    assert "raised" not in stock and "raised" not in ours, (stock, ours)
    assert (stock["ops"]["GatherV2"], stock["ops"].get("ResourceGather")) == (1, None)
    pieces = 3 if kind == "pieces" else 1
    assert (ours["ops"].get("GatherV2"), ours["ops"]["ResourceGather"]) == (None, pieces)
    # What is not used is not run: no piece of the table is read.
    assert ours["read_bytes"] < 1000


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("what", ["loss", "table", "gradient"])
def test_values_have_the_same_bits(cases, kind, what):
    assert cases[f"ours_{kind}"][what] == cases[f"stock_{kind}"][what]


@pytest.mark.parametrize("kind", _KINDS)
def test_row_numbers_of_another_type(cases, kind):
    stock, ours = cases[f"stock_{kind}"], cases[f"ours_{kind}"]
    assert ours["narrow"] == stock["narrow"]
    assert "GatherV2" in stock["narrow_ops"] and "GatherV2" not in ours["narrow_ops"]


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("row", ["too_large", "below_zero"])
def test_errors_have_the_same_codes(cases, kind, row):
    stock = cases[f"stock_{kind}"][row]
    assert stock["raised"] == "InvalidArgumentError"
    assert cases[f"ours_{kind}"][row]["raised"] == stock["raised"]


@pytest.mark.parametrize("kind", _KINDS)
def test_a_value_from_before_an_assignment_is_kept(cases, kind):
    # The tensor is read, then the variable is changed, then rows are gathered from the tensor.
    assert cases[f"ours_{kind}"]["before"] == cases[f"stock_{kind}"]["before"]


def _needed(graph):
    """Kinds of the operations that a function's results need."""
    found, waiting = {}, [tensor.op for tensor in graph.outputs]
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found[op.name] = op.type
            waiting += [tensor.op for tensor in op.inputs]
    return list(found.values())


def _main():
    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job("on", 1, 3)
    import tf_fuse

    def case(is_on, is_split):
        def run():
            set_options = tf.config.optimizer.set_experimental_options
            set_options({"shard_weight_update": is_on})
            partitioner = None
            if is_split:
                partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(3)
            strategy = tf.distribute.ParameterServerStrategy(
                job.cluster.resolver(), variable_partitioner=partitioner
            )
            with strategy.scope():
                layer = keras.layers.Embedding(
                    _ROWS, _WIDTH, embeddings_initializer=keras.initializers.RandomNormal(seed=1)
                )
                layer.build((None,))
            tables = tf_fuse.parameter_server.pieces([layer.embeddings])
            ids = tf.constant([[0, 29_999, 9_999], [10_000, 7, 7]])

            @tf.function
            def step(ids):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(ids) ** 2)
                gradients = tape.gradient(loss, tables)
                for one, gradient in zip(tables, gradients, strict=True):
                    one.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
                return loss, [tf.convert_to_tensor(g) for g in gradients]

            @tf.function
            def before(ids):
                whole = tf.convert_to_tensor(layer.embeddings.value)
                for one in tables:
                    one.assign_add(tf.ones_like(one))
                return tf.gather(whole, ids)

            @tf.function
            def narrow(ids):
                whole = tf.convert_to_tensor(layer.embeddings.value)
                return tf.gather(whole, tf.cast(ids, tf.int16))

            @tf.function
            def read(ids):
                return tf.reduce_sum(layer(ids))

            loop = tf.distribute.coordinator.ClusterCoordinator(strategy)

            def call(function, ids):
                result = loop.schedule(function, args=(ids,))
                loop.join()
                return result.fetch()

            loss, gradients = call(step, ids)
            values = np.concatenate([one.numpy() for one in tables])
            graph = read.get_concrete_function(ids).graph
            ops = _needed(graph)
            call(read, ids)
            counted = job.counted(lambda: float(call(read, ids)))
            results = {
                "loss": coordinator.exact(loss),
                "gradient": coordinator.exact(np.concatenate(gradients).sum(axis=1)[:100]),
                "table": coordinator.exact(values[[0, 7, 9_999, 10_000, 29_999]]),
                "ops": {kind: ops.count(kind) for kind in sorted(set(ops))},
                "read_bytes": counted["counters"].get("bytes", 0),
                "narrow": coordinator.exact(call(narrow, ids)),
                "narrow_ops": _needed(narrow.get_concrete_function(ids).graph),
                "before": coordinator.exact(call(before, ids)),
            }
            for name, row in (("too_large", _ROWS), ("below_zero", -_ROWS - 1)):
                wrong = tf.constant([[row]])
                results[name] = coordinator.caught(lambda wrong=wrong: call(read, wrong))
            return results

        return run

    cases = {}
    for name, is_split in (("whole", False), ("pieces", True)):
        cases[f"stock_{name}"] = case(False, is_split)
        cases[f"ours_{name}"] = case(True, is_split)
    coordinator.finish(cases)


if __name__ == "__main__":
    _main(*sys.argv[1:])
