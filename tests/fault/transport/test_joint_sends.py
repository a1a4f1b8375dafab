# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Joint sends: several tensors under one key of the sender's rendezvous, asked for by hand.

The test is the receiver and the client of the steps (`raw_worker`). A step's group of operations
sends "early" and "gated" together once the gate is open, and "alone" by itself.
"""

import itertools

import pytest

from tests.fault import raw_worker
from tests.fault.raw_worker import error_of, holds
from tests.unit.passes.pass_testing import node

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_NAMES = ["early", "gated"]
_JOINT = {"joint_sends": [2]}


class _Task(raw_worker.SenderTask):
    def __init__(self):
        super().__init__(workers=1, protocol="grpc+fuse")
        self._numbers = itertools.count()

    def begin(self):
        """A step that has begun: its number, its gate's opener, and what runs it."""
        import tensorflow as tf

        number = next(self._numbers)
        with tf.Graph().as_default() as graph:
            gate = raw_worker.make_gate(f"joint_{number}")
            tf.constant(raw_worker.EARLY, name="early")
            with tf.control_dependencies([gate.dequeue()]):
                tf.constant(raw_worker.GATED, name="gated")
            tf.constant(7.0, name="alone")
        definition = graph.as_graph_def()
        sends = type(definition)()
        for name, place in (("early", 0), ("gated", 1), ("alone", None)):
            self.sender.add_send(sends, name, f":{len(sends.node)}", tf.float32.as_datatype_enum)
            if place is not None:
                sends.node[-1].attr["_tf_fuse_joint_send"].s = b"edge_early"
                sends.node[-1].attr["_tf_fuse_joint_place"].i = place
        group = node(
            f"group_{number}", "TfFuse>OperationGroup", [*_NAMES, "alone"], "",
            Tinputs=[tf.float32] * 3, Tresults=[],
        )  # fmt: skip
        group.attr["body"].s = sends.SerializeToString()
        group.attr["results"].list.SetInParent()
        definition.node.append(group)
        with tf.Graph().as_default() as graph:
            raw_worker.make_gate(f"joint_{number}").enqueue(True)
        opener = self.sender.register(graph, {})
        step = next(self.steps)
        return step, opener, self.sender.run(self.sender.register_definition(definition), step)

    def open(self, opener):
        step = next(self.steps)
        self.sender.run(opener, step).result()
        self.sender.cleanup(step)

    def end(self, step, running):
        running.cancel()
        self.sender.cleanup(step)
        assert self.at_rest() == self.AT_REST


@pytest.fixture(scope="module")
def task():
    task = _Task()
    yield task
    task.close()


def test_one_request_has_all_tensors_of_a_joint_send(task):
    step, opener, running = task.begin()
    answer = task.sender.receive(step, [*_NAMES, "alone"], fused=_JOINT)
    task.sender.round_trips()
    assert not answer.done()
    task.open(opener)
    assert [holds(answer, value) for value in (raw_worker.EARLY, raw_worker.GATED, 7.0)] == [
        True,
        True,
        True,
    ]
    task.end(step, running)


def test_a_request_may_come_later_than_what_it_asks_for(task):
    step, opener, running = task.begin()
    task.open(opener)
    assert holds(task.sender.receive(step, ["alone"]), 7.0)
    running.result()  # All has been sent.
    assert holds(task.sender.receive(step, _NAMES, fused=_JOINT), raw_worker.GATED)
    task.end(step, running)


def test_a_tensor_that_is_left_out_of_the_frame_is_received_under_its_own_key(task):
    step, opener, running = task.begin()
    limits = {"max_packed_tensor_bytes": 1}
    answer = task.sender.receive(step, _NAMES, fused=_JOINT | limits)
    task.open(opener)
    assert not holds(answer, raw_worker.EARLY) and not holds(answer, raw_worker.GATED)
    assert holds(task.sender.receive(step, ["gated"]), raw_worker.GATED)
    assert holds(task.sender.receive(step, ["early"]), raw_worker.EARLY)
    task.end(step, running)


def test_a_request_that_waits_ends_with_its_step(task):
    step, _, running = task.begin()
    answer = task.sender.receive(step, _NAMES, fused=_JOINT)
    task.sender.round_trips()
    task.sender.cleanup(step)
    assert error_of(answer) == ("ABORTED", f"Cleanup {step}")
    task.end(step, running)


def test_what_is_missing_of_a_joint_send_is_all_of_it(task):
    from tf_fuse.v1 import fuse_recv_pb2

    step, opener, running = task.begin()
    request = next(task.requests)
    answer = task.sender.receive(step, [*_NAMES, "alone"], request=request, fused=_JOINT)
    task.sender.round_trips()
    waiting = fuse_recv_pb2.WaitingReceives.FromString(
        task.sender.ask(fuse_recv_pb2.QUESTION_WAITING)
    )
    assert [list(one.tensor_names) for one in waiting.receives] == [
        ["edge_early", "edge_gated", "edge_alone"]
    ]
    task.open(opener)
    answer.result()
    task.end(step, running)


@pytest.mark.parametrize(
    ("names", "joint", "found"),
    [
        (["alone", "never"], 2, "float"),
        (["early", "gated", "never"], 3, "one of 2"),
    ],
)
def test_a_request_for_another_joint_send_is_an_error(task, names, joint, found):
    step, opener, running = task.begin()
    answer = task.sender.receive(step, names, fused={"joint_sends": [joint]})
    task.open(opener)
    code, text = error_of(answer)
    assert code == "INTERNAL"
    assert text.startswith(f"expected a joint send of {joint} tensors, got {found}. ")
    task.end(step, running)


def test_one_that_does_not_ask_for_it_jointly_waits_for_the_others(task):
    """It takes the first tensor's key, and cannot read what it finds there."""
    step, opener, running = task.begin()
    answer = task.sender.receive(step, _NAMES)
    task.open(opener)
    task.sender.round_trips()
    assert not answer.done()
    task.sender.cleanup(step)
    assert error_of(answer) == ("ABORTED", f"Cleanup {step}")
    task.end(step, running)


@pytest.mark.parametrize(
    ("joint", "text"),
    [
        ([1], "a joint send of 1 tensors, expected 2 or more"),
        ([2, 0], "a joint send of 0 tensors, expected 2 or more"),
        ([2, 2], "joint sends of 4 tensors, there are 3"),
        ([2**32 - 1, 2**32 - 1], f"joint sends of {2**33 - 2} tensors, there are 3"),
        ([2] * 2000, "2009 bytes in other fields than devices and names, at most 1024 are read"),
    ],
)
def test_malformed_joint_sends_are_refused(task, joint, text):
    answer = task.sender.receive(next(task.steps), [*_NAMES, "alone"], fused={"joint_sends": joint})
    code, found = error_of(answer)
    assert code == "INVALID_ARGUMENT"
    assert text in found
