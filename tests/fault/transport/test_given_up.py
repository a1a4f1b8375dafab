# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests whose receivers have given up, while the cancellation was lost.

gRPC loses a cancellation that comes before TensorFlow's handler runs. A test cannot time that; so
here a client sends requests in the name of a task that did not send them, and does not cancel them.
"""

import os

import pytest

from tests.fault import coordinator, queue_steps, raw_worker

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_ASK_MS = "100"
_QUESTIONS = 5


class _Task(raw_worker.SenderTask):
    """Worker 1 has the plugin, worker 2 has not."""

    def __init__(self):
        super().__init__(
            workers=3,
            protocol={"worker": "grpc+fuse", "worker:2": "grpc"},
            env={"TF_FUSE_STEP_WAIT_MS": _ASK_MS},
        )

    def waiting(self, receiver, by_parts):
        """The future of a step that has begun, and of a request of `receiver` that waits in it."""
        step, names = next(self.steps), ["gated", "never"]
        running = self.sender.run(self.sender.graph().handle, step)
        fields = {"recv_device": f"/job:worker/replica:0/task:{receiver}/device:CPU:0"}
        if by_parts:
            answer = self.sender.receive_parts(step, names, next(self.requests), **fields)
        else:
            answer = self.sender.receive(step, names, fused=fields)
        return running, answer

    def counted(self, name):
        return self.sender.counters()[name]

    def asked(self, questions):
        """Returns once so many more receivers have been asked."""
        before = self.counted("asked_receivers")
        coordinator.wait_until(lambda: self.counted("asked_receivers") >= before + questions)
        return self.counted("asked_receivers") - before


@pytest.fixture(scope="module")
def task():
    task = _Task()
    yield task
    task.close()


@pytest.mark.parametrize("by_parts", [False, True])
def test_what_the_receiver_does_not_wait_for_ends_as_by_its_cancellation(task, by_parts):
    before = task.sender.counters()
    running, answer = task.waiting(1, by_parts)
    error = answer.exception()
    assert error.code().name == "CANCELLED"
    assert "was cancelled by its receiver" in error.details()
    # Its local receives end with the step, which is aborted as if the receiver had cancelled.
    assert task.at_rest() == task.AT_REST
    after = task.sender.counters()
    assert after["cancelled_requests"] == before["cancelled_requests"] + 1
    assert after["open_steps"] == before["open_steps"]
    running.cancel()


@pytest.mark.parametrize("by_parts", [False, True])
@pytest.mark.parametrize("receiver", [2, 9])  # Without the plugin; not in the cluster.
def test_a_receiver_that_cannot_say_is_waited_for(task, receiver, by_parts):
    before = task.counted("cancelled_requests")
    running, answer = task.waiting(receiver, by_parts)
    assert task.asked(_QUESTIONS) >= _QUESTIONS
    assert not answer.done()
    assert task.counted("cancelled_requests") == before
    answer.cancel()
    running.cancel()
    coordinator.wait_until(lambda: task.counted("cancelled_requests") == before + 1)
    assert task.counted("cancelled_requests") == before + 1


def test_receivers_that_wait_are_asked_and_nothing_is_cancelled():
    cases = coordinator.run(__file__)
    for grouping in ("level", "dynamic"):
        assert cases[grouping]["sums"] == [66.0 + 9.0] * 2
        assert cases[grouping]["asked"] >= _QUESTIONS
        assert cases[grouping]["cancelled"] == 0


def _main():
    os.environ["TF_FUSE_STEP_WAIT_MS"] = _ASK_MS
    import tensorflow as tf

    job = coordinator.Job("on", 2, 2)
    steps = queue_steps.QueueSteps(job)

    def case(grouping):
        options = {"do_fuse_recv": True, "fuse_grouping": grouping}
        tf.config.optimizer.set_experimental_options(options)
        before = job.total()
        results, _ = steps.enter(steps.blocks, 2)
        asked = before["asked_receivers"] + _QUESTIONS
        coordinator.wait_until(lambda: job.total()["asked_receivers"] >= asked)
        after = job.total()
        for _ in results:
            steps.queue.enqueue(1.0)
        job.coordinator.join()
        return {
            "sums": [float(result.fetch()) for result in results],
            "asked": after["asked_receivers"] - before["asked_receivers"],
            "cancelled": job.total()["cancelled_requests"] - before["cancelled_requests"],
        }

    coordinator.finish({name: lambda name=name: case(name) for name in ("level", "dynamic")})


if __name__ == "__main__":
    _main()
