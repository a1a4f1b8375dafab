# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recorded requests, changed at random, to a task of "grpc+fuse": it answers all, and is as before.

Among them requests by parts for tensors of steps that run, and for what answers to them have left.
The short form, over gRPC. The long one, with sanitizers and without gRPC: `make fuzz-requests`.
"""

import collections
import random
from pathlib import Path

import pytest

from examples import standalone
from tests.fault import coordinator, raw_worker, worker_service

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

LocalCluster = standalone.cluster_package().LocalCluster

_CORPUS = Path(__file__).resolve().parents[3] / "cc" / "testing" / "requests" / "corpus"
_REQUESTS = 600
_SEED = 2026
_GAUGES = ("pending_requests", "pending_bytes", "partial_tensors", "open_steps")
_AT_REST = dict.fromkeys(_GAUGES, 0)
_RUNNING = 8  # steps that run while requests are sent
_CONSTANTS = [f"constant_{i}" for i in range(30)]  # of each of them, and one that never comes


class _Mutations:
    """Requests by chance; the same for the same seed.

    Attributes:
      running: steps that send _CONSTANTS.
    """

    def __init__(self, sender):
        self._random = random.Random(_SEED)
        self._sender = sender
        self._message = worker_service.messages()["RecvTensorRequest"]
        self.running = []
        self._asked = collections.defaultdict(list)  # by step
        paths = sorted(_CORPUS.glob("recorded_*request_*"))
        # Behind the fuzz target's mode and plan.
        self._seeds = [path.read_bytes()[3:] for path in paths]
        assert len(self._seeds) >= 5

    def next(self, number):
        """Whether it is by parts, for a step that runs, and a RecvTensorRequest's fields."""
        by_parts = self._random.random() < 0.4
        return by_parts, self._by_parts(number) if by_parts else self._recorded(number)

    def _by_parts(self, number):
        from google.protobuf import any_pb2

        from tf_fuse.v1 import fuse_recv_pb2

        rng = self._random
        step, request = rng.choice(self.running), number + 20_000
        names = rng.sample([*_CONSTANTS, "never"], rng.randrange(5))
        rests = rng.sample(self._asked[step], min(rng.randrange(3), len(self._asked[step])))
        if rng.random() < 0.1:
            rests.append(rng.choice([0, -1, 77, number]))
        fused = fuse_recv_pb2.FuseRecvTensorRequest(
            frame_version=3,
            send_device=self._sender.device,
            send_device_incarnation=self._sender.incarnation,
            recv_device=raw_worker.RECEIVER,
            tensor_names=[f"edge_{name}" for name in names],
            rest_of_requests=rests,
        )
        if rng.random() < 0.2:
            self._change_field(fused)
        value = fused.SerializeToString()
        if rng.random() < 0.2:
            value = self._change_bytes(value)
        self._asked[step].append(request)
        url = worker_service.TYPE_URL_OF_PARTS
        return {
            "step_id": step,
            "request_id": request,
            "rendezvous_key": worker_service.KEY_OF_NO_TENSOR,
            "transport_options": any_pb2.Any(type_url=url, value=value).SerializeToString(),
        }

    def _recorded(self, number):
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
        if rng.random() < 0.2:
            urls = [worker_service.TYPE_URL, worker_service.TYPE_URL_OF_PARTS]
            options.type_url = rng.choice(urls)
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
        change = rng.randrange(11)
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
            field = "awaited_request_id" if number % 2 else "stalled_request_id"
            setattr(fused, field, rng.choice([0, 77, number]))
        elif change == 7:
            del fused.tensor_names[:]
            fused.question = number % 6
        elif change == 8:
            fused.rest_of_requests.extend([number] * rng.choice([1, 2, 100]))
        elif change == 9:
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


def _steps_graph(sender):
    """The handle of a graph that sends _CONSTANTS, and "never", which does not come."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        for i, name in enumerate(_CONSTANTS):
            tf.constant(float(i), name=name)
        gate = tf.queue.FIFOQueue(1, [tf.float32], [[]], shared_name="never", name="gate")
        tf.identity(gate.dequeue(), name="never")
    return sender.register(graph, {name: name for name in (*_CONSTANTS, "never")})


def test_changed_requests_are_answered_and_leave_nothing():
    import grpc

    # Those for steps that never begin are to be answered soon.
    with LocalCluster(1, 0, "grpc+fuse", env={"TF_FUSE_STEP_WAIT_MS": "200"}) as cluster:
        sender = raw_worker.Sender(cluster.cluster_spec["worker"][0], True)
        assert _served(sender, 5_000_000) == b"TFFR"
        graph = _steps_graph(sender)
        mutations = _Mutations(sender)
        codes = {False: collections.Counter(), True: collections.Counter()}

        def batch(first, count):
            mutations.running = [3_000_000 + first + i for i in range(_RUNNING)]
            running = [sender.run(graph, step) for step in mutations.running]
            answers = []
            for i in range(count):
                by_parts, fields = mutations.next(first + i)
                answers.append((by_parts, sender.call("RecvTensor", **fields)))
                if i % 10 == 0:
                    sender.round_trips()  # some answers have left something by now
            sender.round_trips()
            for step, call in zip(mutations.running, running, strict=True):
                call.cancel()
                sender.cleanup(step)
            for by_parts, answer in answers:
                code = answer.code()
                codes[by_parts][code.name] += 1
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
        assert coordinator.settled(gauges, lambda found: found == _AT_REST) == _AT_REST
        assert _resident(cluster) - memory < 64 << 20
        assert _served(sender, 5_000_001) == b"TFFR"
        sender.close()
    assert sum(map(collections.Counter.total, codes.values())) == _REQUESTS
    # Each gate of the handler was reached, or the requests have become too weak to mean anything.
    reached = {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION"}
    assert codes[True].keys() >= reached, codes
    assert codes[False].keys() >= reached | {"ABORTED"}, codes
    assert codes[False]["OK"] >= 20 and codes[True]["OK"] >= 20, codes
