# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests by gRPC for a chunk of a collective, of which all but the last were given up.

A cancelled request may be taken up after the one that replaced it. A test cannot time that; so here
a client numbers requests as if they had come in another order.
"""

import grpc
import pytest
from fault import raw_worker

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_TYPE_URL = "type.googleapis.com/tf_fuse.v1.GrpcChunkRequest"
_REPLACED = "Operation was cancelled for BufRendezvous key a:chunk"
_LATE = "the chunk was asked for again before this request came: key a:chunk"


@pytest.fixture(scope="module")
def task():
    task = raw_worker.SenderTask(workers=1, protocol="grpc+fuse")
    yield task
    task.close()


def _ask(task, process, number):
    from google.protobuf import any_pb2

    from tf_fuse.v1 import collectives_pb2

    request = collectives_pb2.GrpcChunkRequest(
        key="a:chunk",
        device=task.sender.device,
        device_incarnation=task.sender.incarnation,
        bytes=8,
        process=process,
        number=number,
    )
    options = any_pb2.Any(type_url=_TYPE_URL, value=request.SerializeToString())
    return task.sender.call(
        "RecvTensor",
        step_id=7,
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
    _waits(task, 2, 9)
    assert _refusal(untold) == _REPLACED
