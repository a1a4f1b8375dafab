# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Peers that ask and never take the answer: what they cost a server is bounded.

The limits are set far below their defaults, so that little has to be sent.
"""

import os

import pytest

from tests.fault import coordinator, raw_http2, worker_service

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_LIMITS = {
    "TF_FUSE_MAX_PENDING_REQUESTS": 500,  # 100 of one step
    "TF_FUSE_MAX_PENDING_BYTES": 64 << 20,
    "TF_FUSE_MAX_UNSENT_FRAME_BYTES": 16 << 20,
    # Requests for steps that do not begin are to stay for the whole test.
    "TF_FUSE_STEP_WAIT_MS": 3_600_000,
}
_RECV_TENSOR = worker_service.PATH + "RecvTensor"
_PS = "/job:ps/replica:0/task:0"
_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
_SUM = 276.0


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


def test_requests_of_one_step_are_bounded_and_others_go_on(cases):
    assert cases["one_step"]["while"] == {"pending": 100, "rejected": 900}
    assert cases["one_step"]["text"] == (
        "RESOURCE_EXHAUSTED: fused receive of step 7000: this task has 100 pending fused requests "
        "of that step, and the limit is 100; TF_FUSE_MAX_PENDING_REQUESTS on this task raises "
        "it"
    )
    assert cases["one_step"]["step_beside"] == {"sum": _SUM, "fused_rpcs": 1}
    assert cases["one_step"]["after"] == {"pending": 0, "bytes": 0, "unsent": 0}


def test_requests_of_all_steps_are_bounded(cases):
    assert cases["many_steps"]["while"] == {"pending": 500, "rejected": 2500}
    assert cases["many_steps"]["text"] == (
        "RESOURCE_EXHAUSTED: fused receive of step 9999: this task has 500 pending fused requests, "
        "and the limit is 500; TF_FUSE_MAX_PENDING_REQUESTS on this task raises it"
    )
    assert cases["many_steps"]["after"] == {"pending": 0, "bytes": 0, "unsent": 0}


def test_bytes_of_requests_are_bounded(cases):
    # 10,000 keys of 145 bytes and 600 for each, 70 kB of message: 7.5 MB, and 8 times that fit.
    assert cases["large_requests"]["while"] == {"pending": 8, "rejected": 32}
    assert 7_000_000 < cases["large_requests"]["bytes"] / 8 < 8_000_000
    assert cases["large_requests"]["growth"] < 64 << 20
    assert cases["large_requests"]["after"] == {"pending": 0, "bytes": 0, "unsent": 0}


def test_requests_that_are_given_up_at_once_leave_nothing(cases):
    assert cases["given_up"] == {"cancelled": 1500, "pending": 0, "bytes": 0, "unsent": 0}


def test_what_is_left_of_answers_is_bounded(cases):
    # Each request has one tensor that is there, and 10,000 that never come.
    rests = cases["rests"]
    assert rests["while"] == {"served": 7, "rejected": 5}
    assert rests["held"] == {"pending": 0, "tensors": 70_000, "unsent": 0}
    assert 9_000_000 < rests["bytes"] / 7 < 10_000_000
    assert rests["growth"] < 64 << 20
    assert "; TF_FUSE_MAX_PENDING_BYTES on this task raises it" in rests["text"]
    assert rests["after"] == {"pending": 0, "bytes": 0, "unsent": 0}


def test_frames_that_are_not_read_are_bounded(cases):
    # 40 steps, 4 MiB for each; beyond the limit the tensors are left beside the frame.
    frames = cases["unread_frames"]
    assert frames["served"] == {"rpcs": 40, "rejected": 0}
    assert 12 << 20 < frames["unsent"] <= 16 << 20
    assert frames["bodies"] == 0
    # Without the bound it would be 160 MiB: 64 tensors of one step share their memory.
    assert frames["growth"] < 80 << 20
    assert frames["after"] == {"pending": 0, "bytes": 0, "unsent": 0}


def test_answers_to_questions_are_bounded(cases):
    # 60 requests wait for 100 tensors each, with names of 3000 bytes: 18 MB of names.
    questions = cases["questions"]
    assert questions["waiting"] == 60
    # 301 kB for each receive; an answer has at most 4 MiB.
    assert questions["listed"] == 13
    # Not one of ten is read: 16 MiB is the limit, 3.9 MB each.
    assert questions["unread"] == {"served": 4, "rejected": 6}
    assert questions["unsent"] <= 16 << 20
    assert questions["text"].startswith("RESOURCE_EXHAUSTED: an answer of 39")
    assert questions["text"].endswith(
        "bytes: the limit of unsent bytes is 16777216; TF_FUSE_MAX_UNSENT_FRAME_BYTES on this task "
        "raises it"
    )
    assert questions["after"] == {"pending": 0, "bytes": 0, "unsent": 0}


def test_steps_after_all_that_are_fused_and_right(cases):
    assert cases["step_before"] == {"sum": _SUM, "fused_rpcs": 1}
    assert cases["step_after"] == {"sum": _SUM, "fused_rpcs": 1}
    assert cases["alive"] is True


def _graph_that_sends(names, bytes_each, incarnation):
    """A graph of the server: one constant, sent under many names."""
    import numpy as np
    import tensorflow as tf

    graph = tf.compat.v1.GraphDef()
    sender = f"{_PS}/device:CPU:0"
    const = graph.node.add(name="value", op="Const", device=sender)
    const.attr["dtype"].type = tf.uint8.as_datatype_enum
    const.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.zeros(bytes_each, np.uint8)))
    for name in names:
        send = graph.node.add(name=name, op="_Send", input=["value"], device=sender)
        send.attr["T"].type = tf.uint8.as_datatype_enum
        send.attr["tensor_name"].s = name.encode()
        send.attr["send_device"].s = sender.encode()
        send.attr["recv_device"].s = _WORKER.encode()
        send.attr["send_device_incarnation"].i = incarnation - (incarnation >> 63 << 64)  # signed
        send.attr["client_terminated"].b = False
    return graph


def _main():
    os.environ.update({name: str(value) for name, value in _LIMITS.items()})
    import grpc
    import psutil
    import tensorflow as tf

    import tf_fuse

    job = coordinator.Job("on", 1, 1)
    address = job.cluster.cluster_spec["ps"][0]
    peer = worker_service.Peer(address, _PS)
    server = psutil.Process(job.cluster._tasks["ps:0"].process.pid)

    def on_ps():
        return tf_fuse.cluster_metrics()[_PS]

    def resident():
        return server.memory_info().rss

    def message(names, step, type_url=worker_service.TYPE_URL):
        value = peer.fused_request(names, receiver=_WORKER)
        return peer.recv_tensor(value, step, type_url).SerializeToString()

    variables = job.variables([tf.range(3.0) + 8 * i for i in range(5)])

    @tf.function
    def total():
        return tf.reduce_sum(tf.add_n([v.read_value() for v in variables]) + 7.0)

    job.call(total)

    def step():
        result = []
        counters = job.counted(lambda: result.append(float(job.call(total))))["counters"]
        return {"sum": result[0], "fused_rpcs": counters.get("fused_rpcs", 0)}

    def held():
        counters = on_ps()
        return {
            "pending": counters["pending_requests"],
            "bytes": counters["pending_bytes"],
            "unsent": counters["unsent_frame_bytes"],
        }

    nothing = {"pending": 0, "bytes": 0, "unsent": 0}

    def after(connection):
        connection.close()
        return coordinator.settled(held, lambda found: found == nothing)

    def flood(connection, requests):
        """Sends all; returns once each is pending or was rejected."""
        before = on_ps()
        count = 0
        for request in requests:
            connection.call(_RECV_TENSOR, request)
            count += 1

        def now():
            counters = on_ps()
            rejected = counters["rejected_requests"] - before["rejected_requests"]
            return {"pending": counters["pending_requests"], "rejected": rejected}

        coordinator.wait_until(lambda: sum(now().values()) == count)
        return now()

    def text_of(names, step, type_url=worker_service.TYPE_URL):
        """The error of a client that does read."""
        try:
            value = peer.fused_request(names, receiver=_WORKER)
            peer.method("RecvTensor")(peer.recv_tensor(value, step, type_url), timeout=30)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "no error"

    def one_step():
        connection = raw_http2.Connection(address)
        result = {"while": flood(connection, (message(["a"], 7000) for _ in range(1000)))}
        result["text"] = text_of(["a"], 7000)
        result["step_beside"] = step()
        return {**result, "after": after(connection)}

    def many_steps():
        connection = raw_http2.Connection(address)
        result = {"while": flood(connection, (message(["a"], 8000 + i) for i in range(3000)))}
        result["text"] = text_of(["a"], 9999)
        return {**result, "after": after(connection)}

    def large_requests():
        connection = raw_http2.Connection(address)
        before = resident()
        # Different names: or all requests would share one list of keys.
        names = ([f"{i:02}{j:04}" for j in range(10_000)] for i in range(40))
        result = {"while": flood(connection, (message(n, 20_000 + i) for i, n in enumerate(names)))}
        result |= {"growth": resident() - before, "bytes": held()["bytes"]}
        return {**result, "after": after(connection)}

    def given_up():
        connection = raw_http2.Connection(address)
        before = on_ps()["cancelled_requests"]
        for first in range(30_000, 31_500, 100):
            steps = range(first, first + 100)
            streams = [connection.call(_RECV_TENSOR, message(["a"], number)) for number in steps]
            # gRPC itself drops those that are given up before TensorFlow sees them.
            coordinator.wait_until(lambda: held()["pending"] == 100)
            for stream in streams:
                connection.cancel(stream)
            coordinator.wait_until(lambda: held() == nothing)
        result = {"cancelled": on_ps()["cancelled_requests"] - before, **held()}
        connection.close()
        return result

    def rests():
        sent = [f"rest{i}" for i in range(13)]
        step_id = 60_000
        peer.run_graph(_graph_that_sends(sent, 8, peer.incarnation), [step_id])
        before, memory = on_ps(), resident()
        connection = raw_http2.Connection(address)
        asked = [[name, *(f"{i:02}{j:04}" for j in range(10_000))] for i, name in enumerate(sent)]
        for names in asked[:-1]:
            connection.call(_RECV_TENSOR, message(names, step_id, worker_service.TYPE_URL_OF_PARTS))

        def now():
            counters = on_ps()
            rejected = counters["rejected_requests"] - before["rejected_requests"]
            return {
                "served": counters["served_rpcs"] - before["served_rpcs"],
                "rejected": rejected,
            }

        coordinator.wait_until(lambda: sum(now().values()) == len(asked) - 1)
        result = {"while": now(), "growth": resident() - memory, "bytes": held()["bytes"]}
        result["text"] = text_of(asked[-1], step_id, worker_service.TYPE_URL_OF_PARTS)
        connection.close()
        # The client has gone, but nobody can know that it will not ask for the rest.
        coordinator.wait_until(lambda: held()["unsent"] == 0)
        result["held"] = {
            "pending": held()["pending"],
            "tensors": on_ps()["partial_tensors"],
            "unsent": held()["unsent"],
        }
        peer.clean_up(step_id)
        coordinator.wait_until(lambda: held() == nothing)
        return {**result, "after": held()}

    def unread_frames():
        names = [f"send{i}" for i in range(64)]
        steps = list(range(40_000, 40_040))
        peer.run_graph(_graph_that_sends(names, 64 << 10, peer.incarnation), steps)
        before, memory = on_ps(), resident()
        connection = raw_http2.Connection(address)
        type_urls = (worker_service.TYPE_URL, worker_service.TYPE_URL_OF_PARTS)
        for number in steps:
            connection.call(_RECV_TENSOR, message(names, number, type_urls[number % 2]))

        def served():
            counters = on_ps()
            return {
                "rpcs": counters["served_rpcs"] - before["served_rpcs"],
                "rejected": counters["rejected_requests"] - before["rejected_requests"],
            }

        coordinator.wait_until(lambda: served()["rpcs"] == len(steps))
        result = {
            "served": served(),
            "unsent": held()["unsent"],
            "growth": resident() - memory,
            "bodies": connection.body_bytes,
            "after": after(connection),
        }
        for number in steps:
            peer.clean_up(number)
        return result

    def questions():
        from tf_fuse.v1 import fuse_recv_pb2

        requests, asking = raw_http2.Connection(address), raw_http2.Connection(address)
        names = [f"{i:03}" + "n" * 2997 for i in range(100)]
        result = {
            "waiting": flood(requests, (message(names, 50_000 + i) for i in range(60)))["pending"]
        }
        fused = peer.fused_request([], receiver=_WORKER, question=fuse_recv_pb2.QUESTION_WAITING)
        question = peer.recv_tensor(fused, 0)
        answer = peer.method("RecvTensor")(question)
        result["listed"] = answer.count(b"/job:worker/replica:0/task:0")
        before = on_ps()["rejected_requests"]
        for _ in range(10):
            asking.call(_RECV_TENSOR, question.SerializeToString())

        def unread():
            rejected = on_ps()["rejected_requests"] - before
            return {"served": held()["unsent"] // 3_800_000, "rejected": rejected}

        coordinator.wait_until(lambda: sum(unread().values()) == 10)
        result |= {"unread": unread(), "unsent": held()["unsent"]}
        try:
            peer.method("RecvTensor")(question, timeout=30)
        except grpc.RpcError as error:
            result["text"] = f"{error.code().name}: {error.details()}"
        asking.close()
        return {**result, "after": after(requests)}

    coordinator.finish(
        {
            "step_before": step,
            "questions": questions,
            "one_step": one_step,
            "many_steps": many_steps,
            "large_requests": large_requests,
            "given_up": given_up,
            "rests": rests,
            "unread_frames": unread_frames,
            "step_after": step,
            "alive": lambda: job.cluster._tasks["ps:0"].process.poll() is None,
        }
    )


if __name__ == "__main__":
    _main()
