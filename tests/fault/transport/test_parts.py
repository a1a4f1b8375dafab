# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests by parts (fuse_grouping="dynamic"), spoken to one task by hand.

The test is the receiver and the client of the steps (`raw_worker`): what is there when, and what is
asked for again, is its choice.
"""

import numpy as np
import pytest

from tests.fault import raw_worker
from tests.fault.raw_worker import error_of, holds

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_NOTHING = raw_worker.SenderTask.AT_REST
_NAMES = ["early", "gated", "never"]


class _Task(raw_worker.SenderTask):
    def __init__(self):
        super().__init__(workers=1, protocol="grpc+fuse", env={"TF_FUSE_MAX_FRAME_BYTES": "4"})

    def begin(self):
        """A step that has begun: its number, its graph, and what runs it."""
        step, graph = next(self.steps), self.sender.graph()
        return step, graph, self.sender.run(graph.handle, step)

    def ask(self, step, names=(), rest=(), **kwargs):
        """Starts a request by parts; returns its id and its future."""
        request = next(self.requests)
        fields = {"rest_of_requests": rest, **kwargs}
        return request, self.sender.receive_parts(step, names, request, **fields)


@pytest.fixture(scope="module")
def task():
    task = _Task()
    yield task
    task.close()


def test_an_answer_has_what_is_there_and_the_rest_is_asked_for_by_its_id(task):
    step, graph, running = task.begin()
    first, answer = task.ask(step, _NAMES)
    assert holds(answer, raw_worker.EARLY) and not holds(answer, raw_worker.GATED)
    held = task.gauges_once(lambda gauges: gauges["pending_requests"] == 0)
    # Nobody asks; what the request took is kept for its other two tensors.
    assert held["pending_requests"] == 0
    assert held["partial_tensors"] == 2 and held["pending_bytes"] > 2 * 600
    _, answer = task.ask(step, rest=[first])
    task.sender.open_gate(graph)
    assert holds(answer, raw_worker.GATED) and not holds(answer, raw_worker.EARLY)
    left = task.gauges_once(lambda gauges: gauges["partial_tensors"] == 1)
    assert left["partial_tensors"] == 1
    running.cancel()
    task.sender.cleanup(step)
    assert task.at_rest() == _NOTHING


def test_what_comes_while_nobody_asks_is_kept(task):
    step, graph, running = task.begin()
    first, answer = task.ask(step, _NAMES[:2])
    assert holds(answer, raw_worker.EARLY)
    task.sender.open_gate(graph)
    _, answer = task.ask(step, rest=[first])
    assert holds(answer, raw_worker.GATED)
    # The last of its tensors is sent: nothing is left, while the step runs.
    assert task.at_rest() == _NOTHING
    running.cancel()
    task.sender.cleanup(step)


def test_new_tensors_and_rests_share_a_request(task):
    step, graph, running = task.begin()
    first, answer = task.ask(step, ["early", "never"])
    answer.result()
    _, answer = task.ask(step, ["gated"], rest=[first])
    task.sender.open_gate(graph)
    assert holds(answer, raw_worker.GATED)
    running.cancel()
    task.sender.cleanup(step)
    assert task.at_rest() == _NOTHING


def test_the_rest_of_an_answer_is_given_once(task):
    step, graph, running = task.begin()
    first, answer = task.ask(step, _NAMES[:2])
    answer.result()
    _, waiting = task.ask(step, rest=[first])
    task.sender.round_trips()
    _, again = task.ask(step, rest=[first])
    assert error_of(again) == (
        "INVALID_ARGUMENT",
        f"FuseRecvTensorRequest: the rest of request {first} was asked for, but no answer of this "
        "step left one",
    )
    # The other is unharmed.
    task.sender.open_gate(graph)
    assert holds(waiting, raw_worker.GATED)
    running.cancel()
    task.sender.cleanup(step)
    assert task.at_rest() == _NOTHING


def test_the_rest_of_another_step_is_not_given(task):
    (step, _, running), (other, _, other_running) = task.begin(), task.begin()
    first, answer = task.ask(step, _NAMES[:2])
    answer.result()
    _, wrong = task.ask(other, rest=[first])
    assert error_of(wrong)[0] == "INVALID_ARGUMENT"
    for number, run in ((step, running), (other, other_running)):
        run.cancel()
        task.sender.cleanup(number)
    assert task.at_rest() == _NOTHING


@pytest.mark.parametrize("asked_again", [False, True])
def test_cleanup_of_a_step_ends_what_is_left(task, asked_again):
    step, _, running = task.begin()
    first, answer = task.ask(step, _NAMES)
    answer.result()
    if asked_again:
        _, answer = task.ask(step, rest=[first])
        task.sender.round_trips()
    task.sender.cleanup(step)
    if asked_again:
        assert error_of(answer)[0] == "ABORTED"
    running.cancel()
    assert task.at_rest() == _NOTHING


def test_a_cancelled_request_aborts_the_step(task):
    """As a single receive does, and a fused one."""
    step, _, running = task.begin()
    first, answer = task.ask(step, _NAMES)
    answer.result()
    other = task.sender.receive(step, ["gated"])
    _, answer = task.ask(step, rest=[first])
    task.sender.round_trips()
    answer.cancel()
    assert error_of(other)[0] in ("ABORTED", "CANCELLED")
    running.cancel()
    assert task.at_rest() == _NOTHING
    task.sender.cleanup(step)


def test_a_cancelled_request_before_its_step(task):
    step = next(task.steps)
    _, answer = task.ask(step, _NAMES)
    task.sender.round_trips()
    assert task.gauges()["pending_requests"] == 1
    answer.cancel()
    assert task.at_rest() == _NOTHING
    task.sender.cleanup(step)


def test_an_operation_that_fails(task):
    step, graph, running = task.begin()
    first, answer = task.ask(step, ["early", "failing", "gated"])
    assert holds(answer, raw_worker.EARLY)
    _, answer = task.ask(step, rest=[first])
    task.sender.round_trips()
    task.sender.open_gate(graph, "failing")
    code, text = error_of(answer)
    assert code == "INVALID_ARGUMENT" and "StringToNumberOp could not correctly convert" in text
    running.exception()
    task.sender.cleanup(step)
    assert task.at_rest() == _NOTHING


def test_answers_say_how_long_tensors_were_waited_for(task):
    """The frame has one slot more: here with one int64, as only one tensor is there."""
    sizes = {}
    for report_waits in (False, True):
        step, _, running = task.begin()
        _, answer = task.ask(step, _NAMES, report_waits=report_waits)
        sizes[report_waits] = len(answer.result().tensor)
        running.cancel()
        task.sender.cleanup(step)
    assert sizes[True] > sizes[False]
    assert task.at_rest() == _NOTHING


def test_a_frame_above_the_limit_has_tensors_beside(task):
    """Frames of this task have four bytes of payload at most: one of the two is put back."""
    import tensorflow as tf

    one, two = 5.0, 6.0
    with tf.Graph().as_default() as graph:
        tf.constant(one, name="one")
        tf.constant(two, name="two")
    step = next(task.steps)
    before = task.sender.counters()
    task.sender.run(task.sender.register(graph, {"one": "one", "two": "two"}), step).result()
    _, answer = task.ask(step, ["one", "two"])
    assert holds(answer, one) and not holds(answer, two)
    after = task.sender.counters()
    assert after["served_tensors"] - before["served_tensors"] == 2
    single = task.sender.receive(step, ["two"]).result()
    assert raw_worker.tensor_proto(single).tensor_content == np.float32(two).tobytes()
    task.sender.cleanup(step)
    assert task.at_rest() == _NOTHING
