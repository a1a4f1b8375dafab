# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fused receives change no value: stock, plugin without the option, and fused, bit for bit."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

# Workers and servers.
_SHAPES = [
    pytest.param((1, 3), marks=pytest.mark.slow),
    (2, 2),
    pytest.param((3, 1), marks=pytest.mark.slow),
]
_VARIABLES = 12
_DTYPES = ["bool", "int32", "int64", "half", "bfloat16", "float32", "float64", "complex64"]
_CASES = [
    "reads",
    "training",
    "dtypes",
    "scalars_and_empty",
    "large",
    "strings",
    "cond_true",
    "cond_false",
    "loop",
    "option_off",
]


@pytest.fixture(scope="module")
def plain():
    """Runs without the option. What the variables hold does not depend on where they are.

    test_modes.py has stock runs of the same number of tasks.
    """
    return {mode: coordinator.run(__file__, mode, 1, 2) for mode in ("stock", "off")}


@pytest.fixture(scope="module", params=_SHAPES, ids=lambda shape: f"{shape[0]}w{shape[1]}ps")
def runs(request, plain):
    return request.param, {**plain, "on": coordinator.run(__file__, "on", *request.param)}


@pytest.mark.parametrize("case", _CASES)
def test_values_are_the_same_bits(runs, case):
    _, results = runs
    stock = results["stock"][case]
    assert "raised" not in stock, stock
    assert results["off"][case].get("value") == stock["value"]
    assert results["on"][case].get("value") == stock["value"]


def test_stock_run_is_stock(plain):
    assert plain["stock"]["plugin_loaded"] is False
    assert plain["off"]["plugin_loaded"] is True


def test_nothing_is_fused_without_the_option(plain):
    for case in _CASES:
        counters = plain["off"][case]["counters"]
        assert not {"fused_rpcs", "groups", "functions", "served_rpcs"} & counters.keys(), case


def _counters(runs, case):
    (_, ps), results = runs
    return ps, results["on"][case]["counters"]


def test_one_rpc_per_server_reads_all_variables(runs):
    ps, counters = _counters(runs, "reads")
    assert counters["fused_rpcs"] == counters["served_rpcs"] == ps
    # Of the control edge from each server, for which only the end waits, nothing travels.
    assert counters["tensors"] == counters["served_tensors"] == _VARIABLES
    assert "fallbacks" not in counters and "errors" not in counters


def test_training_step_is_fused(runs):
    _, counters = _counters(runs, "training")
    assert counters["fused_rpcs"] == counters["served_rpcs"] > 0
    assert "errors" not in counters and "fallbacks" not in counters


def test_large_tensors_go_beside_the_frame(runs):
    _, counters = _counters(runs, "large")
    assert counters["beside_tensors"] == 2  # it is read twice


def test_strings_are_fused(runs):
    _, counters = _counters(runs, "strings")
    assert counters["fused_rpcs"] > 0
    assert "beside_tensors" not in counters
    assert not [name for name in counters if name.startswith("skipped:type")]


def test_branches_are_fused_dead_or_alive(runs):
    # Of the two branches one is dead in each case; their reads share frames with one another, and
    # with what is read outside. The predicate and the updates' control edges travel singly.
    ps, on_true = _counters(runs, "cond_true")
    _, on_false = _counters(runs, "cond_false")
    for counters in (on_true, on_false):
        assert counters["fused_rpcs"] == counters["served_rpcs"] >= ps
        assert not {"errors", "served_errors", "skipped:may_be_dead"} & counters.keys()
    assert on_true["tensors"] == on_false["tensors"]
    assert on_true["bytes"] < on_false["bytes"], "dead tensors have no bytes"


def test_option_off_applies_to_later_functions(runs):
    _, counters = _counters(runs, "option_off")
    assert not {"fused_rpcs", "groups", "functions"} & counters.keys()


def _main(mode, workers, ps):
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job(mode, workers, ps)
    # Small multiples of powers of two, also after training: sums are exact in any order. In which
    # order stock TensorFlow adds up received tensors is a race.
    vs = job.variables([tf.reshape(tf.range(12.0), [6, 2]) + i for i in range(_VARIABLES)])

    @tf.function
    def read():
        return [v.read_value() * 1.5 for v in vs]

    @tf.function
    def train():
        ids = tf.constant([1, 3, 3])
        with tf.GradientTape() as tape:
            losses = [tf.reduce_sum(tf.nn.embedding_lookup(v, ids) ** 2) for v in vs]
            loss = tf.add_n(losses)
        for i, (v, gradient) in enumerate(zip(vs, tape.gradient(loss, vs), strict=True)):
            if i % 3:
                v.scatter_sub(tf.IndexedSlices(0.25 * gradient.values, gradient.indices))
            else:
                v.assign_sub(0.25 * tf.convert_to_tensor(gradient))
        return loss

    def steps():
        losses = [job.call(train) for _ in range(3)]
        return losses, [v.numpy() for v in vs]

    typed = []
    for dtype in _DTYPES:
        values = tf.cast(tf.constant([[0, 1, 2], [3, 0, 5]]), dtype)
        typed += job.variables([values, tf.cast(tf.constant([1, 0, 1, 1]), dtype)], trainable=False)

    @tf.function
    def read_typed():
        return [tf.identity(v.read_value()) for v in typed]

    def dtypes():
        # numpy has no bfloat16; its bits are those of the high half of a float.
        return [x.numpy().astype(np.float32) if x.dtype == tf.bfloat16 else x.numpy()
                for x in map(tf.convert_to_tensor, job.call(read_typed))]  # fmt: skip

    odd = job.variables([3.5, np.zeros([0, 3], np.float32), -1.25, np.zeros([2, 0], np.float32)])
    odd += job.variables([np.float32("nan"), np.float32("-inf"), np.float32(-0.0), 7.0])

    @tf.function
    def read_odd():
        return [tf.identity(v.read_value()) for v in odd]

    big = job.variables([np.ones([4], np.float32)] * 4)
    big += job.variables([np.arange(300_000, dtype=np.float32)])

    @tf.function
    def read_big():
        return [v.read_value()[-3:] * 2.0 + tf.reduce_max(v) for v in big]

    texts = job.variables([["a", f"b{i}"] for i in range(4)], trainable=False)

    @tf.function
    def read_texts():
        return [tf.strings.join([v.read_value(), "!"]) for v in texts]

    @tf.function
    def branches(flag):
        def yes():
            return tf.add_n([v.read_value() for v in vs[:6]])

        def no():
            return tf.add_n([v.read_value() * 3.0 for v in vs[4:]])

        outside = tf.add_n([v.read_value() for v in vs[::2]])
        return tf.cond(flag, yes, no) + outside

    @tf.function
    def loop():
        def body(i, total):
            reads = [v.read_value() * tf.cast(i, tf.float32) for v in vs]
            return i + 1, total + tf.add_n(reads)

        _, total = tf.while_loop(lambda i, _: i < 5, body, (0, tf.zeros([6, 2])))
        return total, tf.add_n([v.read_value() for v in vs])

    def again(function, *args):
        job.call(function, args)  # traced, instantiated and probed: the counted call is a step
        return job.counted(lambda: job.call(function, args))

    def option_off():
        if mode == "on":
            tf.config.optimizer.set_experimental_options({"do_fuse_recv": False})

        @tf.function
        def read_later():
            return [v.read_value() - 0.5 for v in vs]

        # On this thread: TensorFlow keeps the options of a thread that has called functions, as
        # the coordinator's have.
        def call():
            with tf.device("/job:worker/replica:0/task:0"):
                return read_later()

        return job.counted(call)

    coordinator.emit("plugin_loaded", "tf_fuse" in sys.modules)
    coordinator.finish(
        {
            "reads": lambda: again(read),
            "training": lambda: job.counted(steps),
            "dtypes": lambda: job.counted(dtypes),
            "scalars_and_empty": lambda: again(read_odd),
            "large": lambda: again(read_big),
            "strings": lambda: job.counted(lambda: job.call(read_texts)),
            "cond_true": lambda: again(branches, tf.constant(True)),
            "cond_false": lambda: again(branches, tf.constant(False)),
            "loop": lambda: again(loop),
            "option_off": option_off,
        }
    )


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
