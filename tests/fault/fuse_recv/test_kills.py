# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Deaths, errors and cancellations end a fused step as they end a stock one."""

import re
import sys
import threading
import time

import pytest

from tests.fault import coordinator, table
from tests.fault.queue_steps import QueueSteps

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_STEPS = 10
_TRIES = 5
_MANY = 300
_SUM = 66.0  # 0 + 1 + ... + 11


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in ("stock", "on")}


@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case):
    table.check(__file__, case, runs["stock"][case], runs["on"][case])


def test_op_error_has_the_same_code(runs):
    stock, fused = runs["stock"]["op_error"], runs["on"]["op_error"]
    assert stock["raised"] == fused["raised"] == "InvalidArgumentError"
    assert stock["code"] == fused["code"] == 3
    for error in (stock, fused):
        assert "is not in [0, 4)" in error["text"]


def test_op_error_names_the_tensors_that_did_not_come(runs):
    assert "[[fused receive of" not in runs["stock"]["op_error"]["text"]
    text = runs["on"]["op_error"]["text"]
    assert re.search(
        r"\[\[fused receive of \d+ tensors from /job:ps/replica:0/task:\d/device:CPU:0 to "
        r"/job:worker/replica:0/task:\d/device:CPU:0; failed: edge_\d+_Gather\w*(, \S+)*\]\]",
        text,
    )


def test_an_error_of_many_tensors_is_not_cut(runs):
    # TensorFlow cuts messages at 3 KiB: the sender's error and the closing bracket must be in it.
    text = runs["on"]["many_errors"]["text"]
    assert runs["stock"]["many_errors"]["code"] == runs["on"]["many_errors"]["code"] == 3
    assert "is not in [0, 4)" in text and "[truncated]" not in text
    found = re.search(r"failed: (.*) and (\d+) more\]\]", text)
    assert found, text
    names, more = found.groups()
    assert len(names) <= 1024
    assert names.count(",") + 1 + int(more) >= _MANY


def test_steps_after_an_op_error_are_right(runs):
    for mode in runs:
        assert runs[mode]["after_op_error"] == [_SUM] * _STEPS


def test_cancelled_step_leaves_nothing_behind(runs):
    for mode in runs:
        case = runs[mode]["cancelled_step"]
        assert case["entered"] is True
        assert case["raised"] == "InvalidArgumentError"
        assert case["after"] == [_SUM] * _STEPS
    assert runs["on"]["cancelled_step"]["pending"] == 0


def test_one_worker_with_the_option_and_one_without(runs):
    for mode in runs:
        case = runs[mode]["one_worker_off"]
        assert case["sums"] == [[_SUM, _SUM]] * _STEPS
        assert case["under_way"] == [_SUM + 9.0]
        assert case["added"] == [2 * _STEPS * (_SUM + i) for i in range(6)]
    fused = runs["on"]["one_worker_off"]["fused_rpcs"]
    assert fused["/job:worker/replica:0/task:0"] == 2 * _STEPS  # from two servers
    assert fused["/job:worker/replica:0/task:1"] == 0
    # Each server receives what it adds in one frame.
    assert fused["/job:ps/replica:0/task:0"] == fused["/job:ps/replica:0/task:1"] == _STEPS


def test_killed_worker_is_done_without(runs):
    for mode in runs:
        assert runs[mode]["worker_killed_before"]["sums"] == [_SUM] * _STEPS


def test_worker_killed_inside_a_fused_receive(runs):
    for mode in runs:
        case = runs[mode]["worker_killed_during"]
        assert case["entered"] is True
        assert case["sums"] == [_SUM + 9.0] * 3
    assert runs["on"]["worker_killed_during"]["were_pending"] is True
    assert runs["on"]["worker_killed_during"]["pending"] == 0


def test_worker_killed_after_its_fused_receives(runs):
    for mode in runs:
        case = runs[mode]["worker_killed_after"]
        assert case["entered"] is True
        assert case["sums"] == [_SUM + 9.0] * 2
    assert runs["on"]["worker_killed_after"]["pending"] == 0


def test_restarted_worker_is_used_and_fused(runs):
    for mode in runs:
        assert runs[mode]["worker_restarted"]["sums"] == [_SUM] * _STEPS
        assert runs[mode]["worker_restarted"]["on_it"] == _SUM
    assert runs["on"]["worker_restarted"]["fused_on_it"] > 0


def test_killed_server_raises_what_stock_raises(runs):
    # More than one try: which of a step's failing operations is reported is a race.
    expected = {"mid_step": ["UnavailableError", 14], "tries": [["UnavailableError", 14]] * _TRIES}
    assert runs["stock"]["ps_killed"] == expected
    assert runs["on"]["ps_killed"] == expected


def test_fused_receive_counts_as_communication(runs):
    # Otherwise TensorFlow turns its UnavailableError into an InternalError, which stops the
    # coordinator instead of making it try again.
    assert runs["on"]["is_communication"] is True


def _main(mode):
    import tensorflow as tf
    from tensorflow.python.eager import context, executor

    job = coordinator.Job(mode, 3, 2)
    program = QueueSteps(job)
    vs, tables, entered, queue = program.variables, program.tables, program.entered, program.queue
    step, fails, blocks, enter = program.step, program.fails, program.blocks, program.enter

    @tf.function
    def fails_often(first):
        return tf.add_n([tf.gather(tables[0], [first + i]) for i in range(_MANY)])

    @tf.function
    def blocks_after():
        total = tf.add_n([v.read_value() for v in vs])
        one = tf.cast(total * 0.0, tf.int32) + 1  # computed on the worker, from what it received
        with tf.device("/job:ps/replica:0/task:0"):
            with tf.control_dependencies([entered.assign_add(one)]):
                value = queue.dequeue()
            values = [value * 2.0, value * 3.0, value * 4.0]
        return total + tf.add_n(values)

    def steps():
        return program.run(_STEPS)

    bad = tf.constant(1000)

    def error_of(function):
        """Which of a step's failures is reported is a race: asks until it is the receive's."""
        for _ in range(50):
            error = coordinator.caught(lambda: job.call(function, (bad,)))
            if mode == "stock" or "[[fused receive of" in error.get("text", ""):
                break
        return error

    def cancelled_step():
        job.coordinator.schedule(blocks)
        is_in = coordinator.wait_until(lambda: int(entered.numpy()) > 0)
        job.coordinator.schedule(fails, args=(bad,))
        result = coordinator.caught(job.coordinator.join)
        result |= {"entered": bool(is_in), "after": steps()}
        if mode == "on":
            coordinator.wait_until(lambda: job.total()["pending_requests"] == 0)
            result["pending"] = job.total()["pending_requests"]
        return result

    def on_servers(name):
        import tf_fuse

        return sum(m[name] for task, m in tf_fuse.cluster_metrics().items() if "/job:ps" in task)

    def killed(task, function, count):
        """Kills a worker in the midst of `count` steps, one on each that is left."""
        results, is_in = enter(function, count)
        result = {"entered": is_in}
        if mode == "on" and function is blocks:
            result["were_pending"] = coordinator.wait_until(
                lambda: on_servers("pending_requests") == count
            )
        job.cluster.kill(task)
        # One for each step, for its second try, and for what the dead worker's may still take.
        for _ in range(2 * count):
            queue.enqueue(1.0)
        result |= table.observe(job.coordinator.join)
        result["sums"] = [float(r.fetch()) for r in results]
        if mode == "on":
            coordinator.wait_until(lambda: on_servers("pending_requests") == 0)
            result["pending"] = on_servers("pending_requests")
        program.empty_queue()
        return result

    def worker_killed_before():
        results = [job.coordinator.schedule(step) for _ in range(_STEPS // 2)]
        job.cluster.kill("worker:1")
        results += [job.coordinator.schedule(step) for _ in range(_STEPS // 2)]
        result = table.observe(job.coordinator.join)
        return result | {"sums": [float(r.fetch()) for r in results]}

    def worker_restarted():
        job.cluster.restart("worker:1")
        start = time.monotonic()
        result = {"outcome": "recovered", "sums": steps()}

        def on_it():
            try:
                with tf.device("/job:worker/replica:0/task:1"):
                    return float(step())
            except tf.errors.OpError:  # the coordinator has not connected it again yet
                return None

        result["on_it"] = coordinator.wait_until(on_it, 60)
        result["seconds"] = time.monotonic() - start
        if mode == "on":
            import tf_fuse

            counters = tf_fuse.cluster_metrics()["/job:worker/replica:0/task:1"]
            result["fused_on_it"] = counters["fused_rpcs"]
        return result

    def ps_killed():
        enter(blocks, 1)
        job.cluster.kill("ps:0")
        errors = [coordinator.caught(job.coordinator.join)]
        errors += [coordinator.caught(lambda: job.call(step)) for _ in range(_TRIES)]
        first, *others = [[error["raised"], error.get("code")] for error in errors]
        return {"mid_step": first, "tries": others}

    def one_worker_off():
        """Steps on worker:0 with the option and on worker:1 without, on the same variables.

        The option holds for the calls of the whole coordinator, so it is switched between them; a
        fused step of worker:2 is under way all the time.
        """
        added = job.variables([0.0] * 6)

        @tf.function
        def add():
            total = tf.add_n([v.read_value() for v in vs])
            for i, v in enumerate(added):
                v.assign_add(total + float(i))
            return total

        def call(worker, function, on):
            if mode == "on":
                tf.config.optimizer.set_experimental_options({"do_fuse_recv": on})
            with tf.device(f"/job:worker/replica:0/task:{worker}"):
                return float(function())

        under_way = []
        is_in = int(entered.numpy()) + 1

        def stay_under_way():
            # Calls of one executor, and those to one worker, wait for each other.
            with context.executor_scope(executor.new_executor(enable_async=False)):
                under_way.append(call(2, blocks, True))

        thread = threading.Thread(target=stay_under_way)
        thread.start()
        coordinator.wait_until(lambda: int(entered.numpy()) == is_in)
        before = job.by_task("fused_rpcs")
        sums = [[call(0, add, True), call(1, add, False)] for _ in range(_STEPS)]
        after = job.by_task("fused_rpcs")
        queue.enqueue(1.0)
        thread.join()
        if mode == "on":
            tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
        return {
            "sums": sums,
            "under_way": under_way,
            "added": [float(v.numpy()) for v in added],
            "fused_rpcs": {task: after[task] - before[task] for task in after},
        }

    def is_communication():
        from tensorflow.python.framework import op_def_registry

        op_def = op_def_registry.get("_FuseRecv")
        return op_def is not None and op_def.is_distributed_communication

    steps()
    coordinator.finish(
        {
            "op_error": lambda: error_of(fails),
            "many_errors": lambda: error_of(fails_often),
            "after_op_error": steps,
            "cancelled_step": cancelled_step,
            "one_worker_off": one_worker_off,
            "worker_killed_before": worker_killed_before,
            "worker_restarted": worker_restarted,
            "worker_killed_during": lambda: killed("worker:1", blocks, 3),
            "worker_killed_after": lambda: killed("worker:2", blocks_after, 2),
            "is_communication": is_communication,
            "ps_killed": ps_killed,
        }
    )


if __name__ == "__main__":
    _main(sys.argv[1])
