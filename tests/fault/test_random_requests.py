# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recorded requests, changed at random, to a task of "grpc+fuse": it answers all, and is as before.

The short form, over gRPC. The long one, with sanitizers and without gRPC: `make fuzz-requests`.
"""

import random
from pathlib import Path

import pytest
from fault import coordinator, raw_worker, worker_service

from examples import standalone

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

LocalCluster = standalone.cluster_package().LocalCluster

_CORPUS = Path(__file__).resolve().parents[2] / "cc" / "transport" / "corpus"
_REQUESTS = 600
_SEED = 2026
_AT_REST = dict.fromkeys(("pending_requests", "pending_bytes", "open_steps"), 0)


class _Mutations:
    """Requests by chance; the same for the same seed."""

    def __init__(self, sender):
        self._random = random.Random(_SEED)
        self._sender = sender
        self._message = worker_service.messages()["RecvTensorRequest"]
        paths = sorted(_CORPUS.glob("recorded_request_*"))
        # Behind the fuzz target's mode and plan.
        self._seeds = [path.read_bytes()[3:] for path in paths]
        assert len(self._seeds) >= 5

    def next(self, number):
        """The fields of a RecvTensorRequest."""
        from google.protobuf import any_pb2

        from tf_fuse.v1 import fuse_recv_pb2

        rng = self._random
        request = self._message.FromString(rng.choice(self._seeds))
        options = any_pb2.Any.FromString(request.transport_options)
        fused = fuse_recv_pb2.FuseRecvTensorRequest.FromString(options.value)
        if rng.random() < 0.8:
            fused.send_device = self._sender.device
            fused.send_device_incarnation = self._sender.incarnation
        for _ in range(rng.randrange(3)):
            self._change_field(fused)
        value = fused.SerializeToString()
        if rng.random() < 0.4:
            value = self._change_bytes(value)
        options.value = value
        serialized = options.SerializeToString()
        if rng.random() < 0.1:
            serialized = self._change_bytes(serialized)
        return {
            "step_id": rng.choice([number, 7, -1, 2**63 - 1]),
            "request_id": rng.choice([number + 10_000, 0, 77]),
            "rendezvous_key": request.rendezvous_key,
            "transport_options": serialized,
        }

    def _change_field(self, fused):
        rng = self._random
        number = rng.choice([0, 1, 2, 255, 2**31, 2**32 - 1])
        names = list(fused.tensor_names)
        change = rng.randrange(10)
        if change == 0:
            fused.frame_version = number
        elif change == 1:
            fused.send_device = rng.choice(["", "x", "/job:a/replica:0/task:0/device:CPU:0"])
        elif change == 2:
            fused.recv_device = rng.choice(["", "x", "/job:a/replica:0/task:0/device:CPU:0"])
        elif change == 3:
            fused.frame_id, fused.iteration = number, -number
        elif change == 4:
            fused.max_packed_tensor_bytes = fused.max_frame_bytes = number
        elif change == 5:
            fused.report_waits = True
        elif change == 6:
            del fused.tensor_names[:]
            fused.stalled_request_id = rng.choice([0, 77, number])
        elif change == 7:
            del fused.tensor_names[:]
            fused.question = number % 6
        elif change == 8:
            fused.tensor_names.append(rng.choice(["", "a;b", "a\0", "b" * 5000, *names]))
        else:
            fused.tensor_names.extend(f"edge_{i}" for i in range(rng.choice([1, 10, 1000])))

    def _change_bytes(self, data):
        rng = self._random
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed) + 1)
            if rng.random() < 0.5 and at < len(changed):
                changed[at] = rng.randrange(256)
            elif rng.random() < 0.5:
                del changed[at : at + rng.randrange(9)]
            else:
                changed[at:at] = rng.randbytes(rng.randrange(9))
        return bytes(changed)


def _resident(cluster):
    import psutil

    return psutil.Process(cluster.pids["worker:0"]).memory_info().rss


def _served(sender, step):
    """What a well-formed request for two tensors gives: the length of its frame's tensor."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.constant([1.0, 2.0], name="one")
        tf.constant("text", name="two")
    handle = sender.register(graph, {"one": "one", "two": "two"})
    sender.run(handle, step).result()
    content = raw_worker.tensor_proto(sender.receive(step, ["one", "two"]).result()).tensor_content
    sender.cleanup(step)
    return content[:4]


def test_changed_requests_are_answered_and_leave_nothing():
    import grpc

    # Those for steps that never begin are to be answered soon.
    with LocalCluster(1, 0, "grpc+fuse", env={"TF_FUSE_STEP_WAIT_MS": "200"}) as cluster:
        sender = raw_worker.Sender(cluster.cluster_spec["worker"][0], True)
        assert _served(sender, 5_000_000) == b"TFFR"
        mutations, codes = _Mutations(sender), {}

        def batch(first, count):
            answers = [sender.call("RecvTensor", **mutations.next(first + i)) for i in range(count)]
            for answer in answers:
                code = answer.code()
                codes[code.name] = codes.get(code.name, 0) + 1
                # Of the task; not of a connection that broke, or of a wait without end.
                assert code not in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                ), answer.details()

        def gauges():
            counters = sender.counters()
            return {name: counters[name] for name in _AT_REST}

        batch(0, _REQUESTS // 3)
        coordinator.wait_until(lambda: gauges() == _AT_REST)
        memory = _resident(cluster)
        batch(_REQUESTS, _REQUESTS - _REQUESTS // 3)
        coordinator.wait_until(lambda: gauges() == _AT_REST)
        assert gauges() == _AT_REST
        assert _resident(cluster) - memory < 64 << 20
        assert _served(sender, 5_000_001) == b"TFFR"
        sender.close()
    assert sum(codes.values()) == _REQUESTS
    # Each gate of the handler was reached, or the requests have become too weak to mean anything.
    assert codes.keys() >= {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED"}, codes
    assert codes["OK"] >= 50, codes
