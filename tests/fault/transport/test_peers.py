# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks without the plugin beside tasks with it: the values are right, and it is said once."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_STEPS = 4
_PLAIN = {"plain_ps": ["ps:1"], "plain_worker": ["worker:1"], "half": ["worker:1", "ps:1"]}


@pytest.fixture(scope="module", params=sorted(_PLAIN))
def case(request):
    return request.param, coordinator.run(__file__, request.param)


def test_training_is_right(case):
    # Each step adds 0.5 to each of 10 variables that begin as 0..9, and returns their sum before.
    assert case[1]["training"] == {
        "sums": [45.0 + 5.0 * step for step in range(_STEPS)],
        "variables": [i + 0.5 * _STEPS for i in range(10)],
        "texts": [f"{i}!" for i in range(8)] * _STEPS,
    }


def test_plain_task_is_not_asked_for_frames(case):
    name, results = case
    total = results["counters"]
    assert total["fused_rpcs"] > 0  # the others still are
    assert "errors" not in total
    if name == "plain_worker":
        # The plain worker instantiates its own steps, and knows nothing of the pass.
        assert "fallbacks" not in total
        assert total["functions"] == 1
    else:
        # The worker's receives from it, in each of its steps; and its own from the worker.
        assert total["fallbacks"] == (_STEPS if name == "plain_ps" else _STEPS // 2)
        assert total["skipped:peer_without_plugin"] == 5


def test_a_loop_falls_back_in_every_iteration(case):
    name, results = case
    assert results["loop"]["value"] == coordinator.exact(3 * (45.0 + 5.0 * _STEPS))
    counters = results["loop"]["counters"]
    # Three iterations and the one in which the body is dead.
    assert counters.get("fallbacks", 0) == (0 if name == "plain_worker" else 4)
    assert counters["fused_rpcs"] > 0 and "errors" not in counters


def test_only_the_plain_worker_is_passed_handles_one_by_one(case):
    name, results = case
    assert results["rewritten_functions"] == {"plain_ps": 0, "plain_worker": 1, "half": 0}[name]
    (warning,) = results["packing_warnings"]
    if name == "plain_worker":
        # Said once, though it was called twice; the other worker goes on with its packs.
        assert warning.startswith(
            "/job:worker/replica:0/task:1 is passed handles one by one from now on: "
        )
    else:
        assert warning.startswith(
            "a server does not have the plugin; handles are passed one by one: "
        )


def test_one_line_says_so(case):
    name, results = case
    expected = {} if name == "plain_worker" else {"worker:0": 1}
    assert results["warnings"] == expected


def _main(name):
    import logging

    import tensorflow as tf
    from tensorflow.python.eager import context

    protocol = {"worker": "grpc+fuse", "ps": "grpc+fuse", "chief": "grpc+fuse"}
    protocol |= {task: "grpc" for task in _PLAIN[name]}
    workers = 1 if name == "plain_ps" else 2
    job = coordinator.Job("on", workers, 2, protocol)
    vs = job.variables([float(i) for i in range(10)])
    texts = job.variables([f"{i}" for i in range(8)])

    @tf.function
    def step():
        total = coordinator.training_step(vs)
        return total, [tf.strings.join([text, "!"]) for text in texts]

    @tf.function
    def loop(n):
        def body(i, total):
            return i + 1, total + tf.add_n([v.read_value() for v in vs])

        return tf.while_loop(lambda i, _: i < n, body, (0, 0.0))[1]

    def run_loop():
        with tf.device("/job:worker/replica:0/task:0"):
            return float(loop(tf.constant(3)))

    packing_warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: packing_warnings.append(record.getMessage())
    logging.getLogger("tf_fuse").addHandler(handler)

    def rewritten_functions():
        packer = context.context()._tf_fuse_packer
        return sum(rewritten is not None for rewritten in packer._functions.values())

    def training():
        sums, read = [], []
        for i in range(_STEPS):
            with tf.device(f"/job:worker/replica:0/task:{i % workers}"):
                total, strings = step()
            sums.append(float(total))
            read += [text.numpy().decode() for text in strings]
        return {"sums": sums, "variables": [float(v.numpy()) for v in vs], "texts": read}

    def warnings():
        text = "does not serve fused receives"
        counts = {task: job.cluster.logs(task).count(text) for task in job.cluster.tasks}
        return {task: count for task, count in counts.items() if count}

    def counters():
        return {key: count for key, count in job.total().items() if count}

    coordinator.finish(
        {
            "training": training,
            "counters": counters,
            "warnings": warnings,
            "rewritten_functions": rewritten_functions,
            "packing_warnings": lambda: packing_warnings,
            "loop": lambda: job.counted(run_loop),
        }
    )


if __name__ == "__main__":
    _main(sys.argv[1])
