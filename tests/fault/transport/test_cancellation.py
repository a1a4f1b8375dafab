# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps cancelled in a tight loop under load, and a cluster that is closed with receives in flight.

One worker's steps are cancelled one after the other, while the other worker, with the same servers,
runs step after step.
"""

import sys
import threading
import time

import pytest

from tests.fault import coordinator, table

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_CANCELLED = 64
_WAITING = 8  # every eighth waits for what never comes
_VARIABLES = 12
_SUM = float(sum(range(_VARIABLES)))
_IN_FLIGHT = 2


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in ("stock", "on")}


@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case):
    table.check(__file__, case, runs["stock"][case], runs["on"][case])


def test_every_step_was_cancelled(runs):
    for mode in runs:
        ends = runs[mode]["cancelled_in_a_loop"]["ends"]
        assert ends["waiting"] == ["CancelledError"] * (_CANCELLED // _WAITING)
        # Some of the others were over before, and then right.
        assert len(ends["running"]) == _CANCELLED - _CANCELLED // _WAITING
        assert set(ends["running"]) <= {"CancelledError", _SUM}
        assert "CancelledError" in ends["running"]


def test_the_load_is_not_harmed(runs):
    for mode in runs:
        case = runs[mode]["cancelled_in_a_loop"]
        assert case["load_steps"] > 0
        assert case["load_sums"] == [_SUM]  # no other value ever came
        assert case["load_errors"] == []


def test_steps_afterwards_are_right_and_nothing_is_left(runs):
    for mode in runs:
        case = runs[mode]["cancelled_in_a_loop"]
        assert case["sums"] == [_SUM] * 2
        assert case["in_queue"] == 1  # a cancelled step took nothing
    left = runs["on"]["cancelled_in_a_loop"]["left"]
    assert left == {"pending_requests": 0, "pending_receives": 0, "unsent_frame_bytes": 0}
    assert runs["on"]["cancelled_in_a_loop"]["fused_rpcs"] > 0


def test_closed_tasks_end_by_themselves(runs):
    for mode in runs:
        case = runs[mode]["closed_during"]
        assert case["entered"] is True
        assert set(case["statuses"].values()) == {0}  # not killed, and no crash
        assert len(case["statuses"]) == 4
    assert runs["on"]["closed_during"]["were_pending"] == _IN_FLIGHT


def _main(mode):
    import tensorflow as tf
    from tensorflow.python.eager import cancellation, context, executor

    # TensorFlow has one for all threads; here each call has its own.
    managers = threading.local()
    cancellation.context = lambda: getattr(managers, "own", None)

    job = coordinator.Job(mode, 2, 2)
    variables = job.variables([float(i) for i in range(_VARIABLES)])
    entered = job.variables([0])[0]
    with tf.device("/job:ps/replica:0/task:0"):
        queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]], shared_name="queue")

    @tf.function
    def plain():
        return tf.add_n([v.read_value() for v in variables])

    @tf.function
    def waits():
        """Waits on a server, while the worker waits in a fused receive for what that will send."""
        with tf.device("/job:ps/replica:0/task:0"):
            with tf.control_dependencies([entered.assign_add(1)]):
                value = queue.dequeue()
            values = [value * 2.0, value * 3.0]
        return tf.add_n([v.read_value() for v in variables] + values)

    def call(worker, function):
        own = executor.new_executor(enable_async=False)  # calls of one wait for each other
        try:
            with context.executor_scope(own), tf.device(f"/job:worker/replica:0/task:{worker}"):
                return float(function())
        finally:
            own.clear_error()  # it would be printed when the executor goes

    def gauges():
        names = ("pending_requests", "pending_receives", "unsent_frame_bytes")
        if mode == "stock":
            return dict.fromkeys(names, 0)
        total = job.total()
        return {name: total[name] for name in names}

    def cancelled(function, until=lambda: True):
        """Runs a step on worker:0 and cancels it; returns how it ended."""
        manager = cancellation.CancellationManager()
        ended = []

        def run():
            try:
                managers.own = manager
                ended.append(call(0, function))
            except tf.errors.OpError as error:
                ended.append(type(error).__name__)

        thread = threading.Thread(target=run)
        thread.start()
        coordinator.wait_until(until)
        manager.start_cancel()
        thread.join()
        return ended[0]

    def cancel_all(ends):
        for i in range(_CANCELLED):
            # Stock TensorFlow was seen to lose a cancellation right after a step's start, so one
            # that would wait for ever is cancelled when it is known to wait.
            if i % _WAITING == 0:
                now = int(entered.numpy())
                end = cancelled(waits, lambda now=now: int(entered.numpy()) > now)
                ends["waiting"].append(end)
            else:
                ends["running"].append(cancelled(plain))

    def cancelled_in_a_loop():
        for worker in range(2):
            call(worker, plain)
        load, errors, stop = [], [], threading.Event()

        def run():
            while not stop.is_set():
                try:
                    load.append(call(1, plain))
                except tf.errors.OpError as error:
                    errors.append(str(error)[:500])

        thread = threading.Thread(target=run)
        thread.start()
        ends = {"waiting": [], "running": []}
        result = table.observe(lambda: cancel_all(ends))
        stop.set()
        thread.join()
        with tf.device("/job:ps/replica:0/task:0"):
            queue.enqueue(1.0)
        result["sums"] = [call(worker, plain) for worker in range(2)]
        left = coordinator.settled(gauges, lambda found: not any(found.values()))
        result |= {"ends": ends, "in_queue": int(queue.size()), "left": left}
        queue.dequeue()
        return result | {
            "load_steps": len(load),
            "load_sums": sorted(set(load)),
            "load_errors": errors,
            "fused_rpcs": job.total()["fused_rpcs"],
        }

    def closed_during():
        before = int(entered.numpy())
        results = []
        threads = [
            threading.Thread(
                target=lambda i=i: results.append(table.observe(lambda: call(i % 2, waits)))
            )
            for i in range(_IN_FLIGHT)
        ]
        for thread in threads:
            thread.start()
        is_in = coordinator.wait_until(lambda: int(entered.numpy()) == before + _IN_FLIGHT)
        case = {"entered": bool(is_in)}
        if mode == "on":
            coordinator.wait_until(lambda: gauges()["pending_requests"] == _IN_FLIGHT)
            case["were_pending"] = gauges()["pending_requests"]
        start = time.monotonic()
        job.cluster.close()
        for thread in threads:
            thread.join()
        tasks = job.cluster._tasks.values()
        case["statuses"] = {task.name: task.process.returncode for task in tasks}
        case["outcome"] = ", ".join(sorted({result["outcome"] for result in results}))
        return case | {"seconds": round(time.monotonic() - start, 3)}

    coordinator.finish({"cancelled_in_a_loop": cancelled_in_a_loop, "closed_during": closed_during})


if __name__ == "__main__":
    _main(sys.argv[1])
