# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults while a worker has several calls under way, or several steps in one: stock's outcomes.

One worker, one server. Gated steps say on the server that they have begun, and wait there. In mode
"on" `steps_in_flight` calls are under way; in mode "repeat" each call has `_STEPS` steps.
"""

import json
import signal
import subprocess
import sys

import pytest

from tests.fault import coordinator, table

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(600)]

_IN_FLIGHT = 3
_CALLS = 40
_STEPS = 3
_SERVER = "/job:ps/replica:0/task:0"


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in ("stock", "on", "repeat")}


@pytest.mark.parametrize("mode", ["on", "repeat"])
@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case, mode):
    table.check(__file__, case, runs["stock"][case], runs[mode][case])


@pytest.mark.parametrize(("mode", "most"), [("stock", 1), ("on", _IN_FLIGHT)])
def test_so_many_calls_are_under_way(runs, mode, most):
    """Of nine calls; when one has ended, at most one more has begun."""
    found = runs[mode]["under way"]
    assert found["first"] == [most, 0]
    begun, ended = found["then"]
    assert ended == 1 and most <= begun <= most + 1
    assert found["last"] == [9, 9]


@pytest.mark.parametrize(("mode", "most"), [("stock", 1), ("on", _IN_FLIGHT)])
@pytest.mark.parametrize("case", ["worker_killed", "worker_killed_idle"])
def test_calls_run_again_if_the_worker_was_lost_and_no_others(runs, case, mode, most):
    assert _CALLS <= runs[mode][case]["calls"] <= _CALLS + most


@pytest.mark.parametrize("case", ["worker_killed", "worker_killed_idle"])
def test_all_steps_of_a_call_run_again(runs, case):
    """The call that was under way may have made any number of its steps before."""
    assert _CALLS * _STEPS <= runs["repeat"][case]["calls"] <= (_CALLS + 1) * _STEPS


@pytest.mark.parametrize("mode", ["stock", "on"])
def test_calls_that_wait_run_again(runs, mode):
    case = runs[mode]["worker_killed_waiting"]
    assert case["begun"] == 2 * case["waiting"]
    assert case["ended"] == case["waiting"] == (1 if mode == "stock" else _IN_FLIGHT)


def test_a_call_whose_first_step_waits_runs_again(runs):
    case = runs["repeat"]["worker_killed_waiting"]
    assert (case["begun"], case["ended"]) == (1 + _STEPS, _STEPS)


@pytest.mark.parametrize("mode", ["stock", "on", "repeat"])
def test_steps_after_one_that_fails_do_not_run(runs, mode):
    assert runs[mode]["second_step_error"]["ended"] == 1


@pytest.mark.parametrize("mode", ["stock", "on", "repeat"])
@pytest.mark.parametrize("case", ["step_error", "next_coordinator"])
def test_the_next_call_works(runs, case, mode):
    assert runs[mode][case]["then"] == 1


def _job(mode, cluster=None):
    """A job whose coordinator has the option, and its gated step."""
    if mode == "on":
        import tensorflow as tf

        import tf_fuse  # noqa: F401  (the option)

        tf.config.optimizer.set_experimental_options({"steps_in_flight": _IN_FLIGHT})
    sizes = {} if cluster else {"workers": 1, "ps": 1}
    return coordinator.Job("stock" if mode == "stock" else "on", cluster=cluster, **sizes)


def _repeated(mode, step):
    """The function that a call runs."""
    if mode != "repeat":
        return step
    import tf_fuse

    return tf_fuse.parameter_server.repeat(step, _STEPS)


class _Gate:
    """Steps that wait on the server.

    Attributes:
      step: takes a value from the queue, and counts before and after it.
    """

    def __init__(self, job, name, mode):
        import tensorflow as tf

        self._begun, self._ended = job.variables([0, 0], trainable=False)
        with tf.device(_SERVER):
            self._queue = tf.queue.FIFOQueue(100, [tf.int32], shapes=[[]], shared_name=name)

        @tf.function
        def step():
            with tf.device(_SERVER), tf.control_dependencies([self._begun.assign_add(1)]):
                value = self._queue.dequeue()
                with tf.control_dependencies([value]):
                    self._ended.assign_add(1)
            return value

        self.step = _repeated(mode, step)
        self._first = _STEPS if mode == "repeat" else 1
        self.open(self._first)
        job.call(self.step)

    def counts(self):
        """How many steps have begun, and ended, but for those of the first call."""
        return tuple(int(one.numpy()) - self._first for one in (self._begun, self._ended))

    def open(self, count):
        """Let steps go on."""
        for _ in range(count):
            self._queue.enqueue(1)

    def wait_for(self, begun):
        """Wait until so many have begun; return the counts."""
        coordinator.wait_until(lambda: self.counts()[0] >= begun)
        return self.counts()

    def close(self):
        """Leave no value."""
        for _ in range(int(self._queue.size())):
            self._queue.dequeue()


def _main(mode):
    import numpy as np
    import tensorflow as tf

    job = _job(mode)
    most = _IN_FLIGHT if mode == "on" else 1
    of_call = _STEPS if mode == "repeat" else 1
    (calls,) = job.variables([0], trainable=False)
    data = job.coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(1000).repeat())
    iterator = iter(data)

    @tf.function
    def one(iterator):
        with tf.control_dependencies([next(iterator)]):
            return calls.assign_add(1)

    @tf.function
    def fails(text):
        return tf.strings.to_number(text)

    counted, fails = _repeated(mode, one), _repeated(mode, fails)

    def under_way():
        gate = _Gate(job, "under_way", mode)
        for _ in range(9):
            job.coordinator.schedule(gate.step)
        first = gate.wait_for(most)
        gate.open(1)
        coordinator.wait_until(lambda: gate.counts()[1] == 1)
        then = gate.counts()
        gate.open(9 * of_call - 1)
        job.coordinator.join()
        return {"first": first, "then": then, "last": gate.counts()}

    def counting(action):
        """Observe an action; return how often `counted` ran, too."""

        def run():
            calls.assign(0)
            return table.observe(action) | {"calls": int(calls.numpy())}

        return run

    def worker_killed():
        for _ in range(_CALLS):
            job.coordinator.schedule(counted, args=(iterator,))
        coordinator.wait_until(lambda: int(calls.numpy()) > 5)
        job.cluster.kill("worker:0")
        job.cluster.restart("worker:0")
        job.coordinator.join()

    def worker_killed_idle():
        job.cluster.kill("worker:0")
        job.cluster.restart("worker:0")
        for _ in range(_CALLS):
            job.coordinator.schedule(counted, args=(iterator,))
        job.coordinator.join()

    def worker_killed_waiting():
        gate = _Gate(job, "killed", mode)

        def kill():
            for _ in range(most):
                job.coordinator.schedule(gate.step)
            gate.wait_for(most)
            job.cluster.kill("worker:0")
            job.cluster.restart("worker:0")
            gate.wait_for(most + 1)  # The first call of a function runs alone.
            gate.open(of_call)
            gate.wait_for(2 * most)
            gate.open(most - 1)
            job.coordinator.join()

        observed = table.observe(kill)
        begun, ended = gate.counts()
        gate.close()
        return observed | {"waiting": most, "begun": begun, "ended": ended}

    def then(action):
        """Observe an action; return what the next call returns, too."""

        def run():
            observed = table.observe(action)
            calls.assign(0)
            return observed | {"then": int(np.ravel(job.call(counted, (iterator,)))[0])}

        return run

    def step_error():
        gate = _Gate(job, "error", mode)
        job.call(fails, (tf.constant("1"),))
        if most > 1:
            for _ in range(most - 1):
                job.coordinator.schedule(gate.step)
            gate.wait_for(most - 1)
        job.coordinator.schedule(fails, args=(tf.constant("x"),))
        job.coordinator.join()  # cancels those that wait

    def second_step_error():
        ended, begun = job.variables([0, 0], trainable=False)

        @tf.function
        def step():
            begun.assign_add(1)
            with tf.control_dependencies([tf.debugging.assert_none_equal(begun, 2)]):
                return ended.assign_add(1)

        @tf.function
        def steps():
            return [step() for _ in range(_STEPS)]

        def call():
            job.coordinator.schedule(_repeated(mode, step) if mode == "repeat" else steps)
            job.coordinator.join()

        return table.observe(call) | {"ended": int(ended.numpy())}

    def next_coordinator():
        """Another one is killed while its calls wait; this one goes on."""
        spec = json.dumps(job.cluster.cluster_spec)
        other = subprocess.Popen(
            [sys.executable, __file__, mode, spec], stdout=subprocess.PIPE, text=True
        )
        try:
            said = next((line for line in other.stdout if line.startswith("they wait")), "")
        finally:
            other.send_signal(signal.SIGKILL)
            other.wait()
        assert said, f"the other coordinator ended with status {other.returncode}"

    def server_killed():
        gate = _Gate(job, "server", mode)
        for _ in range(most + 2):
            job.coordinator.schedule(gate.step)
        gate.wait_for(most)
        job.cluster.kill("ps:0")
        try:
            job.coordinator.join()
        finally:
            job.cluster.restart("ps:0")

    coordinator.finish(
        {
            "under way": under_way,
            "worker_killed": counting(worker_killed),
            "worker_killed_idle": counting(worker_killed_idle),
            "worker_killed_waiting": worker_killed_waiting,
            "step_error": then(step_error),
            "second_step_error": second_step_error,
            "next_coordinator": then(next_coordinator),
            "server_killed": lambda: table.observe(server_killed),
        }
    )


def _wait_for_ever(mode, cluster):
    """What the coordinator does that is killed."""
    job = _job(mode, cluster)
    gate, most = _Gate(job, "other", mode), _IN_FLIGHT if mode == "on" else 1
    for _ in range(most):
        job.coordinator.schedule(gate.step)
    gate.wait_for(most)
    print("they wait", flush=True)
    signal.pause()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _wait_for_ever(sys.argv[1], json.loads(sys.argv[2]))
    else:
        _main(sys.argv[1])
