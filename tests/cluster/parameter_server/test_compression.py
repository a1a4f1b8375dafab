# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The option compress in a job of one worker and two servers: values to the bit, and bytes."""

import sys

import numpy as np
import pytest

from tests.cluster.parameter_server import compression_values as values
from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_TABLES = 10
_ROWS, _WIDTH, _BATCH = values.ROWS, values.WIDTH, values.BATCH
_STEPS = 3
# By task, what it speaks; a task that speaks grpc does not have the plugin.
_JOBS = {
    "all": "grpc+fuse",
    "plain_server": {
        "worker": "grpc+fuse",
        "ps:0": "grpc+fuse",
        "ps:1": "grpc",
        "chief": "grpc+fuse",
    },
    "plain_worker": {"worker": "grpc", "ps": "grpc+fuse", "chief": "grpc+fuse"},
}


@pytest.fixture(scope="module", params=list(_JOBS))
def job(jobs, request):
    return request.param, jobs(request.param)


@pytest.fixture(scope="module")
def cases(jobs):
    return jobs("all")


def _rounds(kind, exact):
    return exact if kind == "plain_worker" else values.nearest(exact)


def test_rows_are_rounded_to_the_nearest(job):
    kind, cases = job
    expected = np.abs(_rounds(kind, values.special()[values.ids()]))
    got = np.array(cases["rows"]["compressed"], np.float32)
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(got[2, 0]) and np.isinf(got[2, 1:3]).all()


@pytest.mark.parametrize("name", ["other", "wide"])
def test_variables_that_the_pattern_does_not_find_and_other_types_are_not(job, name):
    _, cases = job
    expected = np.abs(values.initial(name)[values.ids()])
    np.testing.assert_array_equal(np.array(cases["rows"][name], np.float32), expected)


def test_rows_that_a_function_returns_are_not_rounded(job):
    _, cases = job
    np.testing.assert_array_equal(
        np.array(cases["returned"], np.float32), values.initial("compressed_0")[values.ids()]
    )


def test_gradients_of_rows_are_rounded_and_variables_are_not(job):
    kind, cases = job
    expected = values.initial("compressed_1")
    expected[values.ids()] -= _rounds(kind, np.square(values.square("gradient", [_BATCH, _WIDTH])))
    # What the coordinator reads and saves has all its bits.
    for read in ("read", "restored"):
        np.testing.assert_array_equal(np.array(cases["scattered"][read], np.float32), expected)


def test_dense_gradients_are_rounded_with_feedback_also_after_a_new_trace(job):
    kind, cases = job
    expected, lost = values.initial("compressed_2"), np.zeros([_ROWS, _WIDTH], np.float32)
    for step in range(_STEPS):
        total = np.square(values.square(f"dense_{step}", [_ROWS, _WIDTH])) + lost
        sent = _rounds(kind, total)
        lost = total - sent
        expected -= sent
    assert cases["dense"]["traces"] == _STEPS
    np.testing.assert_array_equal(np.array(cases["dense"]["value"], np.float32), expected)


def test_repeated_steps_share_what_rounding_loses(job):
    kind, cases = job
    expected, lost = values.initial("compressed_3"), np.zeros([_ROWS, _WIDTH], np.float32)
    gradient = values.square("repeated", [_ROWS, _WIDTH])
    for _ in range(2 * _STEPS):
        total = np.square(np.minimum(np.abs(expected), gradient)) + lost
        sent = _rounds(kind, total)
        lost = total - sent
        expected -= sent
    np.testing.assert_array_equal(np.array(cases["repeated"], np.float32), expected)


def test_rows_that_are_read_changed_and_assigned_have_all_their_bits(job):
    _, cases = job
    expected = values.initial("compressed_4")
    expected[values.ids()] *= 2
    np.testing.assert_array_equal(np.array(cases["changed"], np.float32), expected)


def test_rows_of_pieces_that_a_function_returns_have_all_their_bits(job):
    _, cases = job
    whole = np.concatenate([values.initial("piece_0"), values.initial("piece_1")])
    expected = whole[values.ids() * 2][::-1]
    np.testing.assert_array_equal(np.array(cases["pieces"], np.float32), expected)


def test_a_variable_that_is_not_trained_gets_all_bits(job):
    _, cases = job
    expected = np.square(values.square("metric", [_WIDTH]))
    np.testing.assert_array_equal(np.array(cases["metric"], np.float32), expected)


def test_a_value_that_is_assigned_has_all_its_bits(job):
    _, cases = job
    expected = np.square(values.square("assigned", [_ROWS, _WIDTH]))
    np.testing.assert_array_equal(np.array(cases["assigned"], np.float32), expected)


def test_half_the_bytes_of_rows_and_gradients(cases):
    off, on = cases["bytes"]["off"], cases["bytes"]["on"]
    assert off["fused_rpcs"] == on["fused_rpcs"]
    # A multiple of 64, as a frame's payloads are; handles are packed, too.
    saved = 2 * _TABLES * _BATCH * _WIDTH * 2
    assert off["bytes"] - on["bytes"] == saved
    assert cases["bytes"]["packed"] == {"off": 1, "on": 1}


def test_functions_have_no_mark_when_it_is_off(cases):
    off, on = cases["functions"]["off"], cases["functions"]["on"]
    assert on["operations"] == off["operations"]
    assert set(on["attributes"]) - set(off["attributes"]) == {"_tf_fuse_compress"}


def test_the_pattern_finds_layers_of_keras(cases):
    # With rows gathered on servers, and updates that are one operation there.
    rounded = [name for dtype, name in cases["keras"]["slots"] if dtype == "bfloat16"]
    assert len(rounded) == 2
    gradient, rows = sorted(rounded)
    assert gradient.startswith("gradient_tape/") and "/table" in gradient
    assert "/table" in rows and "/ResourceGather/" in rows
    assert cases["keras"]["losses"][0] > cases["keras"]["losses"][-1]


def _main(kind):
    import tempfile

    import tensorflow as tf

    job = coordinator.Job("on", 1, 2, protocol=_JOBS[kind])
    from tensorflow.python.distribute.sharded_variable import ShardedVariable
    from tensorflow.python.eager import context

    import tf_fuse.parameter_server

    def use(compress, pattern=""):
        tf.config.optimizer.set_experimental_options(
            {"do_fuse_recv": True, "compress": compress, "compress_variables": pattern}
        )

    def variable(value, name, **kwargs):
        with job.strategy.scope():
            return tf.Variable(value, name=name, **kwargs)

    def rows():
        use("bfloat16", "^compressed")
        tables = {
            "compressed": variable(values.special(), "compressed_special"),
            "other": variable(values.initial("other"), "not_compressed"),
            "wide": variable(values.initial("wide").astype(np.float64), "compressed_wide"),
        }

        @tf.function
        def step(ids):
            return {name: tf.abs(table.sparse_read(ids)) for name, table in tables.items()}

        found = job.call(step, (values.ids(),))
        return {name: value.tolist() for name, value in found.items()}

    def returned():
        use("bfloat16")
        table = variable(values.initial("compressed_0"), "table")

        @tf.function
        def step(ids):
            return table.sparse_read(ids)

        return job.call(step, (values.ids(),)).tolist()

    def scattered():
        use("bfloat16")
        table = variable(values.initial("compressed_1"), "table")

        @tf.function
        def step(ids, gradient):
            # (The handle alone does not name the variable.)
            tf.raw_ops.ResourceScatterSub(
                resource=table.handle, indices=ids, updates=tf.square(gradient)
            )

        job.call(step, (values.ids(), values.square("gradient", [_BATCH, _WIDTH])))
        read = table.numpy()
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(table=table).write(f"{folder}/saved")
            restored = tf.train.load_checkpoint(path).get_tensor("table/.ATTRIBUTES/VARIABLE_VALUE")
        return {"read": read.tolist(), "restored": restored.tolist()}

    def dense():
        use("bfloat16")
        weight = variable(values.initial("compressed_2"), "weight")
        traces = []

        @tf.function
        def step(gradient, number):
            traces.append(number)
            weight.assign_sub(tf.square(gradient), read_value=False)

        for number in range(_STEPS):
            job.call(step, (values.square(f"dense_{number}", [_ROWS, _WIDTH]), number))
        return {"value": weight.numpy().tolist(), "traces": len(traces)}

    def repeated():
        use("bfloat16")
        weight = variable(values.initial("compressed_3"), "weight")

        def step(gradient):
            # (It depends on the variable, as a gradient does: steps are in order.)
            change = tf.square(tf.minimum(tf.abs(weight), gradient))
            weight.assign_sub(change, read_value=False)

        steps = tf_fuse.parameter_server.repeat(step, _STEPS)
        for _ in range(2):
            job.call(steps, (values.square("repeated", [_ROWS, _WIDTH]),))
        return weight.numpy().tolist()

    def changed():
        use("bfloat16")
        table = variable(values.initial("compressed_4"), "table")

        @tf.function
        def step(ids):
            table.scatter_update(tf.IndexedSlices(table.sparse_read(ids) * 2.0, ids))

        job.call(step, (values.ids(),))
        return table.numpy().tolist()

    def pieces():
        use("bfloat16")
        table = ShardedVariable(
            [variable(values.initial(f"piece_{i}"), f"table/part_{i}") for i in range(2)]
        )

        @tf.function
        def step(ids):
            return tf.reverse(tf.nn.embedding_lookup(table, ids), [0])

        return job.call(step, (values.ids() * 2,)).tolist()

    def metric():
        use("bfloat16")
        total = variable(np.zeros([_WIDTH], np.float32), "total", trainable=False)

        @tf.function
        def step(value):
            total.assign_add(tf.square(value), read_value=False)

        job.call(step, (values.square("metric", [_WIDTH]),))
        return total.numpy().tolist()

    def assigned():
        use("bfloat16")
        weight = variable(values.initial("weight"), "weight")

        @tf.function
        def step(value):
            weight.assign(tf.square(value), read_value=False)

        job.call(step, (values.square("assigned", [_ROWS, _WIDTH]),))
        return weight.numpy().tolist()

    def training(tables):
        @tf.function
        def step(ids):
            for table in tables:
                change = tf.square(table.sparse_read(ids))
                table.scatter_sub(tf.IndexedSlices(change, ids))

        return step

    def packed():
        packer = getattr(context.context(), "_tf_fuse_packer", None)
        functions = packer._functions if packer else {}
        return sum(function is not None for function in functions.values())

    def bytes_of_steps():
        found, kept = {"packed": {}}, []  # (A function that is collected is packed no more.)
        for name, value in (("off", ""), ("on", "bfloat16")):
            use(value)
            tables = [variable(values.initial(f"table_{i}"), f"table_{i}") for i in range(_TABLES)]
            step, before = training(tables), packed()
            kept.append(step)
            job.call(step, (values.ids(),))
            found[name] = job.counted(lambda step=step: job.call(step, (values.ids(),)))["counters"]
            found["packed"][name] = packed() - before
        return found

    def functions():
        tables = [variable(values.initial("table"), "table")]
        signature = tf.TensorSpec([_BATCH], tf.int32)

        def definition():
            traced = training(tables).get_concrete_function(signature)
            made = context.context().get_function_def(traced.name)
            attributes = {key for one in made.arg_attr.values() for key in one.attr}
            return {
                "operations": [node.op for node in made.node_def],
                "attributes": sorted(attributes),
            }

        found = {}
        for name, value in (("on", "bfloat16"), ("off", "")):
            use(value)
            found[name] = definition()
        return found

    def keras_model():
        import keras

        import tf_fuse

        use("bfloat16", "table/")
        tf.config.optimizer.set_experimental_options({"shard_weight_update": True})
        strategy = tf.distribute.ParameterServerStrategy(job.cluster.resolver())
        with strategy.scope():
            table = keras.layers.Embedding(100, 8, name="table")
            model = keras.Sequential(
                [keras.Input([4]), table, keras.layers.Flatten(), keras.layers.Dense(1)]
            )
            optimizer = keras.optimizers.Adam(0.01)
            optimizer.build(model.trainable_variables)

        def update(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(ids) - 1.0))
            weights = model.trainable_variables
            gradients = tape.gradient(loss, [weight.value for weight in weights])
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return loss

        @tf.function
        def step(ids):
            return strategy.run(update, (ids,))

        loop = tf.distribute.coordinator.ClusterCoordinator(strategy)
        ids = tf.reshape(tf.range(64), [16, 4])
        losses = []
        for _ in range(4):
            loss = loop.schedule(step, args=(ids,))
            loop.join()
            losses.append(float(loss.fetch()))
        report = tf_fuse.cluster_reports()["/job:worker/replica:0/task:0"][-1]
        slots = [slot for group in report["groups"] for slot in group["slots"]]
        slots += [skip["slot"] for skip in report["skips"]]
        found = sorted([slot["dtype"], slot["sender_node"]] for slot in slots)
        return {"losses": losses, "slots": found}

    cases = {
        "rows": rows,
        "returned": returned,
        "scattered": scattered,
        "dense": dense,
        "repeated": repeated,
        "changed": changed,
        "pieces": pieces,
        "metric": metric,
        "assigned": assigned,
    }
    if kind == "all":
        # (The last one makes a strategy of its own.)
        cases |= {"functions": functions, "bytes": bytes_of_steps, "keras": keras_model}
    coordinator.finish(cases)


if __name__ == "__main__":
    _main(*sys.argv[1:])
