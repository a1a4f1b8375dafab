# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Senders whose parcels are malformed, late, or never come: what a real receiver makes of them.

The sender is this process, which took the place of a task that was killed: a WorkerService by hand,
and the producer's end of a data channel.
"""

import concurrent.futures
import queue
import socket
import struct
import threading
from typing import ClassVar

import pytest

from tests.fault import coordinator, raw_channel, raw_worker, worker_service

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_SENDER = "/job:worker/replica:0/task:1/device:CPU:0"
_INCARNATION = 4711
_NUMBERS = struct.pack("<20000f", *range(20000))
_UINT8, _FLOAT = 4, 1


def _frame(payloads, dtype=_FLOAT, element_bytes=4):
    """A frame of vectors (cc/frame/frame.h)."""
    header = 32 + 32 * len(payloads)
    records, body, end = b"", b"", header
    for payload in payloads:
        offset = -(-end // 64) * 64
        size = len(payload)
        records += struct.pack("<BBBBIQQq", 1, 0, 1, 0, dtype, offset, size, size // element_bytes)
        body += bytes(offset - end) + payload
        end = offset + len(payload)
    fixed = struct.pack("<4sHHIIQQ", b"TFFR", 3, 0, header, len(payloads), end, 0)
    return fixed + records + body


_FRAME = _frame([_NUMBERS, b"\0\0\x80?"])


def _parcel(number, size):
    from tf_fuse.v1 import fuse_recv_pb2

    message = fuse_recv_pb2.Parcel(id=number, bytes=size)
    return raw_channel.PARCEL_MAGIC + message.SerializeToString()


class _Service:
    """A WorkerService that answers fused requests as the test says.

    Attributes:
      answers: the answers to come, called with the request.
      producer: the other end of its data channels.
    """

    def __init__(self, address):
        import grpc

        self.answers = queue.Queue()
        self.producer = raw_channel.Producer()
        self._messages = worker_service.messages()
        handlers = {
            "RecvTensor": grpc.unary_unary_rpc_method_handler(
                self._recv_tensor,
                request_deserializer=self._messages["RecvTensorRequest"].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
        }
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("tensorflow.WorkerService", handlers)]
        )
        assert self._server.add_insecure_port(address) == int(address.rpartition(":")[2])
        self._server.start()

    def _recv_tensor(self, request, context):
        del context
        from google.protobuf import any_pb2
        from tensorflow.core.framework import tensor_pb2

        from tf_fuse.v1 import fuse_recv_pb2

        options = any_pb2.Any.FromString(request.transport_options)
        fused = fuse_recv_pb2.FuseRecvTensorRequest.FromString(options.value)
        if fused.question == fuse_recv_pb2.QUESTION_CARD:
            content = _frame([self.producer.card.SerializeToString()], _UINT8, element_bytes=1)
        elif not fused.tensor_names:
            content = _frame([])  # a probe, or a question of an older version
        else:
            content = self.answers.get(timeout=raw_worker.TIMEOUT_S)(fused)
        proto = tensor_pb2.TensorProto(dtype=_UINT8, tensor_content=content)
        proto.tensor_shape.dim.add(size=len(content))
        return self._messages["RecvTensorResponse"](tensor=proto.SerializeToString())

    def close(self):
        self._server.stop(None)


class _Receiver(raw_worker.SenderTask):
    """Worker 0, whose steps receive from a worker 1 that is this process."""

    AT_REST: ClassVar = {"pending_receives": 0, "lent_chunks": 0, "open_steps": 0}

    def __init__(self):
        super().__init__(workers=2, protocol="grpc+fuse", env={"TF_FUSE_CHANNEL_FRAME_BYTES": "1"})
        self._cluster.kill("worker:1")
        self.service = _Service(self._cluster.cluster_spec["worker"][1])
        self.producer = self.service.producer
        self._handle = self._register()
        # The first request cannot know of one.
        assert self.open_channel()[0] == 0

    def _register(self):
        import tensorflow as tf

        sender = self.sender
        # Python does not know the operation: the nodes are made by hand.
        definition = tf.Graph().as_graph_def()
        node = definition.node.add(name="received", op="_FuseRecv")
        node.attr["tensor_types"].list.type.extend([_FLOAT, _FLOAT])
        node.attr["tensor_names"].list.s.extend([b"edge_a", b"edge_b"])
        node.attr["send_device"].s = _SENDER.encode()
        node.attr["send_device_incarnation"].i = _INCARNATION
        node.attr["recv_device"].s = sender.device.encode()
        total = definition.node.add(name="checked", op="Identity", input=["received"])
        total.attr["T"].type = _FLOAT
        sender.add_send(definition, "checked", "checked", _FLOAT)
        return sender.register_definition(definition)

    def begin(self, answer):
        """Starts a step whose request is answered so; its number and its future."""
        step = next(self.steps)
        self.service.answers.put(answer)
        return step, self.sender.run(self._handle, step)

    def value(self, answer):
        """The step's value: the bytes of the first tensor.

        Raises:
          grpc.RpcError: the step failed.
        """
        step, running = self.begin(answer)
        try:
            running.result()
            response = self.sender.receive(step, ["checked"]).result()
            return raw_worker.tensor_proto(response).tensor_content
        finally:
            self.sender.cleanup(step)

    def error(self, answer):
        """The error that the step fails with."""
        import grpc

        with pytest.raises(grpc.RpcError) as error:
            self.value(answer)
        return error.value.code().name, error.value.details()

    def open_channel(self):
        """Returns when a request offers a channel, which may have to be made anew.

        Returns:
          What each request offered.
        """
        offers = []

        def answer(request):
            offers.append(request.channel)
            return _FRAME

        assert coordinator.wait_until(
            lambda: self.value(answer) == _NUMBERS and offers[-1] == self.producer.CHANNEL
        )
        return offers

    def close(self):
        self.service.close()
        super().close()


@pytest.fixture(scope="module")
def receiver():
    receiver = _Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(autouse=True)
def nothing_is_left_and_it_goes_on(receiver):
    yield
    assert receiver.service.answers.empty() and receiver.producer.answers.empty()
    assert receiver.at_rest() == receiver.AT_REST
    receiver.open_channel()


def _parcel_of_frame(request):
    assert request.channel == raw_channel.Producer.CHANNEL and request.channel_bytes == 1
    return _parcel(1, len(_FRAME))


def _whole(producer):
    def answer(connection, request):
        assert request.parcel == 1 and request.bytes == len(_FRAME)
        producer.send(connection, _FRAME, answer={"call": request.call, "last": True})

    return answer


def test_a_parcel_is_taken(receiver):
    before = receiver.sender.counters()
    receiver.producer.answers.put(_whole(receiver.producer))
    assert receiver.value(_parcel_of_frame) == _NUMBERS
    after = receiver.sender.counters()
    assert after["channel_frames"] == before["channel_frames"] + 1
    assert after["channel_bytes"] == before["channel_bytes"] + len(_FRAME)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (raw_channel.PARCEL_MAGIC, "bad answer: parcel 0 of 0 bytes"),
        (raw_channel.PARCEL_MAGIC + b"\xff\xff\xff", "bad answer: parcel 0 of 0 bytes"),
        (_parcel(0, 100), "bad answer: parcel 0 of 100 bytes"),
        (_parcel(1, 0), "bad answer: parcel 1 of 0 bytes"),
        (_parcel(1, 1 << 62), "bad answer: parcel 1 of 4611686018427387904 bytes"),
        (b"TFF", "bad frame"),
        (b"", "bad frame"),
    ],
)
def test_a_malformed_answer_is_refused(receiver, answer, text):
    asked = receiver.producer.asked.qsize()
    code, details = receiver.error(lambda request: answer)
    assert code == "DATA_LOSS" and text in details
    assert receiver.producer.asked.qsize() == asked


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"\0" * len(_FRAME), "bad frame"),
        (_frame([_NUMBERS]), "bad frame"),
        (_frame([_NUMBERS, _NUMBERS], dtype=3), "expected float, the frame holds int32"),
    ],
)
def test_bytes_that_are_no_frame_are_refused(receiver, frame, text):
    def answer(connection, request):
        receiver.producer.send(connection, frame, answer={"call": request.call, "last": True})

    receiver.producer.answers.put(answer)
    code, details = receiver.error(lambda request: _parcel(1, len(frame)))
    assert code == "DATA_LOSS" and text in details


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (10, "the step is over", "ABORTED"),
        (3, "is of another mind", "INVALID_ARGUMENT"),
        (14, "is going away", "UNAVAILABLE"),
        (99, "a code of the future", "UNKNOWN"),
    ],
)
def test_the_senders_error_is_the_steps(receiver, status, text, code):
    def answer(connection, request):
        error = {"call": request.call, "code": status, "text": text.encode(), "last": True}
        receiver.producer.send(connection, answer=error)

    receiver.producer.answers.put(answer)
    found, details = receiver.error(_parcel_of_frame)
    assert found == code and text in details


def _hang_up(producer):
    return lambda connection, request: connection.shutdown(socket.SHUT_RDWR)


def _half(producer):
    def answer(connection, request):
        fields = {"call": request.call, "last": True}
        producer.send(connection, _FRAME[:1000], announced=len(_FRAME), answer=fields)
        connection.shutdown(socket.SHUT_RDWR)

    return answer


def _beyond(producer):
    def answer(connection, request):
        producer.send(connection, _FRAME, answer={"call": request.call, "offset": 1, "last": True})

    return answer


def _nowhere(producer):
    def answer(connection, request):
        lent = {"call": request.call, "segment": 5, "segment_bytes": 100, "lease": 1}
        producer.send(connection, answer=lent)

    return answer


def _lent(intact):
    def prepare(producer):
        def answer(connection, request):
            producer.lend(connection, request, _FRAME, intact)

        return answer

    return prepare


def test_a_parcel_in_shared_memory(receiver):
    receiver.producer.answers.put(_lent(intact=True)(receiver.producer))
    assert receiver.value(_parcel_of_frame) == _NUMBERS


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        # As a lost gRPC connection.
        (_hang_up, "UNAVAILABLE"),
        # The sender has used the memory for others: it has lost the channel, and this one has not.
        (_lent(intact=False), "UNAVAILABLE"),
        (_half, "UNAVAILABLE"),
        (_beyond, "DATA_LOSS"),
        (_nowhere, "DATA_LOSS"),
    ],
)
def test_a_channel_that_breaks_fails_the_step(receiver, answer, code):
    receiver.producer.answers.put(answer(receiver.producer))
    found, details = receiver.error(_parcel_of_frame)
    assert found == code and "data channel" in details


def test_a_parcel_that_never_comes_ends_with_the_step(receiver):
    silent = threading.Event()

    def answer(connection, request):
        del connection, request
        silent.wait(raw_worker.TIMEOUT_S)

    asked = receiver.producer.asked.qsize()
    receiver.producer.answers.put(answer)
    step, running = receiver.begin(_parcel_of_frame)
    assert coordinator.wait_until(lambda: receiver.producer.asked.qsize() > asked)
    assert receiver.gauges()["pending_receives"] == 1
    receiver.sender.cleanup(step)
    error = running.exception()
    assert error.code().name == "ABORTED"
    silent.set()
