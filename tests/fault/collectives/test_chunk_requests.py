# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests by gRPC for a chunk of a collective: those that were given up, and those of no end.

A cancelled request may be taken up after the one that replaced it. A test cannot time that; so here
a client numbers requests as if they had come in another order.
"""

import grpc
import pytest

from tests.fault import coordinator, raw_worker

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_LIMITS = {"TF_FUSE_MAX_PENDING_REQUESTS": "100"}  # 20 of one step.
_TYPE_URL = "type.googleapis.com/tf_fuse.v1.GrpcChunkRequest"
_REPLACED = "Operation was cancelled for BufRendezvous key a:chunk"
_LATE = "the chunk was asked for again before this request came: key a:chunk"


@pytest.fixture(scope="module")
def task():
    task = raw_worker.SenderTask(workers=1, protocol="grpc+fuse", env=_LIMITS)
    yield task
    task.close()


def _ask(task, process, number, step=7, **fields):
    from google.protobuf import any_pb2

    from tf_fuse.v1 import collectives_pb2

    request = collectives_pb2.GrpcChunkRequest(
        **{"key": "a:chunk", **fields},
        device=task.sender.device,
        device_incarnation=task.sender.incarnation,
        bytes=8,
        process=process,
        number=number,
    )
    options = any_pb2.Any(type_url=_TYPE_URL, value=request.SerializeToString())
    return task.sender.call(
        "RecvTensor",
        step_id=step,
        rendezvous_key=raw_worker.KEY_OF_NO_TENSOR,
        transport_options=options.SerializeToString(),
    )


def _refusal(answer):
    error = answer.exception()
    assert error.code() is grpc.StatusCode.CANCELLED
    return error.details()


def _waits(task, process, number):
    """A request that has been taken up: one with a lower number is refused."""
    answer = _ask(task, process, number)
    while (text := _refusal(_ask(task, process, number - 1))) != _LATE:
        # It came first, and was replaced.
        assert text == _REPLACED
    assert not answer.done()
    return answer


def test_the_later_of_two_requests_waits_in_whichever_order_they_arrive(task):
    fifth = _waits(task, process=1, number=5)
    for number in (4, 1):
        assert _refusal(_ask(task, 1, number)) == _LATE
    assert not fifth.done()
    sixth = _waits(task, 1, 6)
    assert _refusal(fifth) == _REPLACED
    # Numbers of another process, as of one that was started anew, are not compared.
    second = _waits(task, 2, 2)
    assert _refusal(sixth) == _REPLACED
    # Nor are those of a process that tells none: the last one waits.
    untold = _ask(task, 0, 0)
    assert _refusal(second) == _REPLACED
    last = _waits(task, 2, 9)
    assert _refusal(untold) == _REPLACED
    # What still waits goes with its call.
    last.cancel()
    assert task.at_rest() == task.AT_REST


def test_requests_are_bounded(task):
    """Of a step, of all, and each in bytes; the steps never begin here."""

    def answered(waiting):
        """The error of the one that was refused, which need not be the last."""
        assert coordinator.wait_until(lambda: any(answer.done() for answer in waiting))
        (error,) = [answer.exception() for answer in waiting if answer.done()]
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return error.details()

    def ask(step, count, **fields):
        return [_ask(task, 3, i, step, key=f"{i}:chunk", **fields) for i in range(1, count + 1)]

    rejected = task.sender.counters()["rejected_requests"]
    all_waiting = ask(8, 21)
    assert answered(all_waiting) == (
        "fused receive of step 8: this task has 20 pending fused requests of that step, and the "
        "limit is 20; TF_FUSE_MAX_PENDING_REQUESTS on this task raises it"
    )
    # (These may overtake each other.)
    more = [answer for step in range(9, 13) for answer in ask(step, 20)] + ask(13, 1)
    assert answered(more).endswith(
        "this task has 100 pending fused requests, and the limit is 100; "
        "TF_FUSE_MAX_PENDING_REQUESTS on this task raises it"
    )
    for answer in all_waiting + more:
        answer.cancel()
    assert task.at_rest() == task.AT_REST
    large = ask(21, 20, collective="c" * 60_000)
    assert not any(answer.done() for answer in large)
    error = _ask(task, 3, 1, 22, collective="c" * 70_000).exception()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "bytes, at most 65536 are read" in error.details()
    for answer in large:
        answer.cancel()
    assert task.at_rest() == task.AT_REST
    assert task.sender.counters()["rejected_requests"] == rejected + 3


def test_tensorflows_own_request_waits_for_its_step(task):
    """TensorFlow makes an executor for each step that it is asked for, and keeps it."""

    def ask(step):
        return task.sender.call(
            "RecvBuf",
            step_id=step,
            buf_rendezvous_key="a:chunk",
            num_bytes=8,
            src_device=task.sender.device,
            src_incarnation=task.sender.incarnation,
        )

    waiting = [ask(step) for step in range(30, 50)]
    assert coordinator.wait_until(lambda: task.sender.counters()["pending_requests"] == 20)
    assert not any(answer.done() for answer in waiting)
    for answer in waiting:
        answer.cancel()
    assert task.at_rest() == task.AT_REST
