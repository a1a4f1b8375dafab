# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameter servers that are killed, stopped and restarted: the outcome is stock's.

So it is with dropped connections between a server and the worker. Four servers; one that survives,
and one victim for each way to go. A step reads variables on its victim and on the survivor.
"""

import contextlib
import sys
import threading
import time

import pytest

from tests.fault import coordinator, table
from tests.fault.soak import faults as soak_faults

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_MODES = ("stock", "on")
_SURVIVOR = 3
_DEADLINE_MS = 6000  # of every RPC of a step; nothing else here comes near it


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in _MODES}


@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case):
    if reason := runs["stock"][case].get("skipped"):
        pytest.skip(reason)
    table.check(__file__, case, runs["stock"][case], runs["on"][case])


def test_the_steps_were_fused(runs):
    assert runs["on"]["fused_rpcs"] >= 2 * _SURVIVOR  # two servers in each function's first step


def test_a_deadline_leaves_nothing_pending(runs):
    assert runs["on"]["were_pending"] == 1  # the request of the step that was stopped in its midst
    for mode in _MODES:
        # The cancelled step did not take the value that came too late.
        assert runs[mode]["left_in_queue"] == [1.0]
    assert runs["on"]["pending"] == {"receives": 0, "requests": 0}


def test_there_was_a_connection_to_drop(runs):
    if reason := runs["stock"]["connection_dropped"].get("skipped"):
        pytest.skip(reason)
    for mode in _MODES:
        assert runs[mode]["connection_dropped"]["dropped"] > 0


def test_steps_between_other_tasks_go_on(runs):
    for mode in _MODES:
        assert runs[mode]["others"] == runs[mode]["sums"][1]


def test_the_values_on_the_survivor_are_untouched(runs):
    for mode in _MODES:
        assert runs[mode]["survivors_values"] == [3.0, 7.0, 11.0, 15.0]


def _main(mode):
    import tensorflow as tf
    from tensorflow.python.eager import context

    context.context().operation_timeout_in_ms = _DEADLINE_MS
    job = coordinator.Job(mode, 1, _SURVIVOR + 1)
    variables = job.variables([float(i) for i in range(16)])  # the i-th on server i modulo 4
    entered = job.variables([0] * 4)[_SURVIVOR]

    def on(task):
        return tf.device(f"/job:ps/replica:0/task:{task}")

    def new_queue(task):
        with on(task):
            return tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]], shared_name=f"queue_{task}")

    queues = [new_queue(task) for task in range(_SURVIVOR + 1)]

    class Steps:
        """The functions that one victim takes part in."""

        def __init__(self, victim):
            mine = variables[victim::4] + variables[_SURVIVOR::4]

            @tf.function
            def plain():
                return tf.add_n([v.read_value() for v in mine])

            @tf.function
            def during():
                """Waits on the victim, while the worker waits for what the victim will send."""
                with on(victim):
                    with tf.control_dependencies([entered.assign_add(1)]):
                        value = queues[victim].dequeue()
                    values = [value * 2.0, value * 3.0]
                return tf.add_n([v.read_value() for v in mine] + values)

            @tf.function
            def after():
                """Waits on the survivor, once the worker has what the victim sent."""
                total = tf.add_n([v.read_value() for v in mine])
                one = tf.cast(total * 0.0, tf.int32) + 1  # computed on the worker
                with on(_SURVIVOR):
                    with tf.control_dependencies([entered.assign_add(one)]):
                        value = queues[_SURVIVOR].dequeue()
                    values = [value * 2.0, value * 3.0]
                return tf.add_n([total, *values])

            self.plain, self.during, self.after = plain, during, after

    steps = [Steps(victim) for victim in range(_SURVIVOR)]

    def run(function):
        return float(job.call(function))

    def enter(function):
        before = int(entered.numpy())
        job.coordinator.schedule(function)
        assert coordinator.wait_until(lambda: int(entered.numpy()) > before)

    def pending():
        import tf_fuse

        counters = tf_fuse.cluster_metrics()
        # One that is stopped or dead has no counters.
        known = {task: m for task, m in counters.items() if "error" not in m}
        return {
            "receives": sum(m["pending_receives"] for m in known.values()),
            "requests": sum(m["pending_requests"] for m in known.values()),
        }

    notes = {}

    def on_worker(function):
        with tf.device("/job:worker/replica:0/task:0"):
            return float(function())

    def sums():
        # Traced now: a new function is sent to all servers, and waits for one that is stopped.
        on_worker(steps[0].plain)
        return [run(s.plain) for s in steps]

    def stopped():
        # Both at once, since both wait for the deadline.
        enter(steps[1].during)
        if mode == "on":
            coordinator.wait_until(lambda: pending()["requests"] == 1)
            notes["were_pending"] = pending()["requests"]
        job.cluster.stop("ps:1")
        job.cluster.stop("ps:0")

        def before():
            notes["before"] = table.observe(lambda: on_worker(steps[0].plain))

        thread = threading.Thread(target=before)
        thread.start()
        result = table.observe(job.coordinator.join)
        thread.join()
        job.cluster.cont("ps:1")
        job.cluster.cont("ps:0")
        queues[1].enqueue(1.0)
        return result

    def left_in_queue():
        # A dequeue that was cancelled, and did take the value, would leave none.
        return [float(queues[1].dequeue()) for _ in range(int(queues[1].size()))]

    def continued():
        # Both functions of servers that stood still: none of what they missed is in the way.
        return table.observe(lambda: [run(steps[0].plain), run(steps[1].plain)], repr)

    def stopped_briefly():
        job.cluster.stop("ps:2")
        job.coordinator.schedule(steps[2].plain)
        job.cluster.cont("ps:2")
        return table.observe(job.coordinator.join)

    def connection_dropped():
        if reason := soak_faults.may_drop():
            return {"skipped": f"connections cannot be dropped: {reason}"}
        enter(steps[2].during)
        start = time.monotonic()
        port = int(job.cluster.cluster_spec["ps"][2].rpartition(":")[2])
        dropped = soak_faults.drop_all(job.cluster.pids["worker:0"], port)
        result = table.observe(job.coordinator.join)
        seconds = round(time.monotonic() - start, 3)
        return result | {"seconds": seconds, "dropped": dropped}

    def connection_used_again():
        return table.observe(lambda: when_connected(steps[2].plain), repr)

    def killed_before():
        job.cluster.kill("ps:0")
        return table.observe(lambda: run(steps[0].plain))

    def killed_during():
        enter(steps[1].during)
        job.cluster.kill("ps:1")
        return table.observe(job.coordinator.join)

    def killed_after():
        enter(steps[2].after)
        job.cluster.kill("ps:2")
        queues[_SURVIVOR].enqueue(1.0)
        return table.observe(job.coordinator.join)

    def when_connected(function):
        """Channels wait a while before they try to connect again."""
        found = []

        def connected():
            with contextlib.suppress(tf.errors.UnavailableError):
                found.append(run(function))
            return found

        coordinator.wait_until(connected, 60)
        return found[0]

    def restarted():
        job.cluster.restart("ps:0")
        return table.observe(lambda: when_connected(steps[0].plain), repr)

    def is_idle():
        return pending() == {"receives": 0, "requests": 0}

    cases = {
        "sums": sums,
        "stopped_during": stopped,
        "stopped_before": lambda: notes["before"],
        "left_in_queue": left_in_queue,
        "continued": continued,
        "stopped_briefly": stopped_briefly,
        "connection_dropped": connection_dropped,
        "connection_used_again": connection_used_again,
    }
    if mode == "on":
        cases["were_pending"] = lambda: notes["were_pending"]
        cases["pending"] = lambda: coordinator.wait_until(is_idle) and pending()
        cases["fused_rpcs"] = lambda: job.total()["fused_rpcs"]
    cases |= {
        "killed_before": killed_before,
        "others": lambda: run(steps[1].plain),
        "killed_during": killed_during,
        "killed_after": killed_after,
        "survivors_values": lambda: [float(v.numpy()) for v in variables[_SURVIVOR::4]],
        "restarted": restarted,
    }
    coordinator.finish(cases)


if __name__ == "__main__":
    _main(sys.argv[1])
