# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A server of "grpc+fuse" answers every malformed request with an error, and goes on serving."""

import sys

import pytest
from fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
_TYPE_URL = "type.googleapis.com/tf_fuse.v1.FuseRecvTensorRequest"


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("garbage", "INVALID_ARGUMENT", "FuseRecvTensorRequest: not parseable, 5 bytes"),
        (
            "frame_version_0",
            "FAILED_PRECONDITION",
            "the receiver reads frames up to version 0, this task writes versions 1 to 2",
        ),
        ("unknown_device", "INVALID_ARGUMENT", "/device:CPU:7 unknown device."),
        ("not_a_device", "INVALID_ARGUMENT", "FuseRecvTensorRequest: tensor 0 of 2: "),
        ("wrong_incarnation", "ABORTED", "RecvTensor expects a different device incarnation"),
        ("semicolons", "INVALID_ARGUMENT", "FuseRecvTensorRequest: tensor 1 of 2: "),
        ("empty_name", "INVALID_ARGUMENT", "FuseRecvTensorRequest: tensor 1 of 2: "),
        ("nul_bytes", "INVALID_ARGUMENT", r"tensor 0 of 2: the name 'a\x00\x62' has a NUL"),
        ("equal_names", "INVALID_ARGUMENT", "tensor 1 of 3: the name 'a' stands in the request"),
        ("too_many_names", "INVALID_ARGUMENT", "1048577 tensor names, at most 1048576"),
        ("duplicate_request", "ABORTED", "FuseRecvTensor (tf_fuse) request was received twice"),
    ],
)
def test_rejected(cases, case, code, text):
    assert cases[case]["code"] == code
    assert text in cases[case]["details"]
    assert cases[case]["counters"].get("rejected_requests") == 1
    assert "served_rpcs" not in cases[case]["counters"]


def test_probe_is_answered(cases):
    assert cases["probe"]["code"] == "OK"
    assert cases["probe"]["counters"]["served_probes"] == 1


def test_other_type_url_is_left_to_tensorflow(cases):
    assert cases["other_type_url"]["code"] == "INVALID_ARGUMENT"
    assert "Invalid  rendezvous key: no key" in cases["other_type_url"]["details"]
    assert "rejected_requests" not in cases["other_type_url"]["counters"]


@pytest.mark.parametrize("case", ["wrong_job", "unknown_step", "many_names"])
def test_wait_for_what_never_comes_ends_with_the_client(cases, case):
    assert cases[case]["code"] == "DEADLINE_EXCEEDED"
    assert cases[case]["cancelled"] == 1


def test_a_request_whose_step_does_not_begin_is_to_be_sent_again(cases):
    # gRPC may lose the cancellation of such a request, and then nothing else would end it.
    assert cases["postponed"]["code"] == "ABORTED"
    assert cases["postponed"]["details"] == (
        "fused receive of step 107: the step has not begun on this task; the request may be sent "
        "again"
    )
    assert cases["postponed"]["counters"] == {"postponed_requests": 1}


def test_a_step_that_is_aborted_before_it_begins_ends_its_requests(cases):
    # TensorFlow's own receives of such a step are never answered.
    assert cases["aborted_early"]["code"] == "ABORTED"
    assert cases["aborted_early"]["details"] == "Cleanup 106"
    assert cases["aborted_early"]["counters"] == {"served_errors": 1}


def test_random_bytes(cases):
    # Random bytes that are a valid message are a probe or a key that cannot be parsed.
    assert set(cases["random"]["codes"]) <= {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}
    assert sum(cases["random"]["codes"].values()) == 200
    assert cases["random"]["counters"]["rejected_requests"] == 200


def test_steps_after_all_that_are_fused_and_right(cases):
    assert cases["step_after"]["sum"] == cases["step_before"]["sum"] == 276.0
    assert cases["step_after"]["counters"]["fused_rpcs"] == 1
    assert cases["step_after"]["counters"]["served_rpcs"] == 1
    assert cases["alive"] is True


def test_no_request_is_kept_after_its_client_has_left(cases):
    # Also those for steps that never began, whose receives TensorFlow itself would keep for ever.
    assert cases["pending"] == {"before": 0, "after": 0}


def _worker_messages():
    """The messages of tensorflow/core/protobuf/worker.proto, which TensorFlow ships no Python for.

    Fields of a message type are left as bytes: the encoding is the same.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tf_fuse_test_worker.proto", package="tf_fuse_test", syntax="proto3"
    )
    for name, fields in {
        "RecvTensorRequest": [
            ("step_id", 1, kind.TYPE_INT64),
            ("rendezvous_key", 2, kind.TYPE_STRING),
            ("transport_options", 6, kind.TYPE_BYTES),
            ("request_id", 7, kind.TYPE_INT64),
        ],
        "CleanupGraphRequest": [("step_id", 1, kind.TYPE_INT64)],
        "GetStatusRequest": [],
        "GetStatusResponse": [("device_attributes", 1, kind.TYPE_BYTES)],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, field_type in fields:
            repeated = field == "device_attributes"
            label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=field_type, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"tf_fuse_test.{message.name}")
        )
        for message in file.message_type
    }


def _main():
    import random

    import grpc
    import tensorflow as tf
    from google.protobuf import any_pb2
    from tensorflow.core.framework import device_attributes_pb2

    import tf_fuse
    from tf_fuse.v1 import fuse_recv_pb2

    job = coordinator.Job("on", 1, 1)
    ps_task = "/job:ps/replica:0/task:0"
    channel = grpc.insecure_channel(
        job.cluster.cluster_spec["ps"][0], [("grpc.max_send_message_length", 1 << 30)]
    )
    messages = _worker_messages()

    def method(name):
        return channel.unary_unary(
            f"/tensorflow.WorkerService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
        )

    recv_tensor = method("RecvTensor")
    answer = method("GetStatus")(messages["GetStatusRequest"]())
    attributes = [
        device_attributes_pb2.DeviceAttributes.FromString(data)
        for data in messages["GetStatusResponse"].FromString(answer).device_attributes
    ]
    incarnation = next(x.incarnation for x in attributes if x.device_type == "CPU")
    request_ids = iter(range(1000, 100_000))

    def on_ps():
        return tf_fuse.cluster_metrics()[ps_task]

    def start(value, type_url=_TYPE_URL, step=99, request_id=None, timeout=20):
        request = messages["RecvTensorRequest"](
            step_id=step,
            rendezvous_key="no key",
            transport_options=any_pb2.Any(type_url=type_url, value=value).SerializeToString(),
            request_id=request_id or next(request_ids),
        )
        return recv_tensor.future(request, timeout=timeout)

    def send(value, **kwargs):
        answer = start(value, **kwargs)
        return answer.code().name, answer.details()

    def request(names=("a", "b"), **fields):
        values = {
            "frame_version": 1,
            "send_device": f"{ps_task}/device:CPU:0",
            "send_device_incarnation": incarnation,
            "recv_device": _WORKER,
            "tensor_names": names,
        } | fields
        return fuse_recv_pb2.FuseRecvTensorRequest(**values).SerializeToString()

    def growth(before):
        now = on_ps()
        left_out = ("skipped", "remembered_requests")
        return {k: v - before[k] for k, v in now.items() if k not in left_out and v != before[k]}

    def refused(value, **kwargs):
        def case():
            before = on_ps()
            code, details = send(value, **kwargs)
            return {"code": code, "details": details, "counters": growth(before)}

        return case

    def given_up(value, step):
        def case():
            before = on_ps()["cancelled_requests"]
            code, details = send(value, step=step, timeout=2)
            cancelled = coordinator.wait_until(lambda: on_ps()["cancelled_requests"] - before)
            return {"code": code, "details": details, "cancelled": cancelled}

        return case

    def aborted_early():
        before = on_ps()
        answer = start(request(), step=106)
        coordinator.wait_until(lambda: on_ps()["pending_requests"] == 1)
        method("CleanupGraph")(messages["CleanupGraphRequest"](step_id=106))
        result = {"code": answer.code().name, "details": answer.details()}
        coordinator.wait_until(lambda: on_ps()["pending_requests"] == 0)
        return {**result, "counters": growth(before)}

    def duplicate():
        # The first one waits for a tensor that never comes, and is given up.
        before = on_ps()["cancelled_requests"]
        send(request(), step=104, request_id=77, timeout=1)
        coordinator.wait_until(lambda: on_ps()["cancelled_requests"] > before)
        return refused(request(), step=104, request_id=77)()

    def random_bytes():
        rng = random.Random(2026)
        before, codes = on_ps(), {}
        for _ in range(200):
            code, _ = send(rng.randbytes(rng.randint(1, 300)))
            codes[code] = codes.get(code, 0) + 1
        return {"codes": codes, "counters": growth(before)}

    variables = job.variables([tf.range(3.0) + 8 * i for i in range(5)])

    @tf.function
    def total():
        return tf.reduce_sum(tf.add_n([v.read_value() for v in variables]) + 7.0)

    job.call(total)

    def step():
        result = []
        counters = job.counted(lambda: result.append(float(job.call(total))))["counters"]
        return {"sum": result[0], "counters": counters}

    pending_before = on_ps()["pending_requests"]

    def pending():
        coordinator.wait_until(lambda: on_ps()["pending_requests"] == 0)
        return {"before": pending_before, "after": on_ps()["pending_requests"]}

    device = f"{ps_task}/device:CPU:"
    coordinator.finish(
        {
            "step_before": step,
            "garbage": refused(b"\xff\xff\xff\xff\xff"),
            "frame_version_0": refused(request(frame_version=0)),
            "unknown_device": refused(request(send_device=device + "7")),
            "not_a_device": refused(request(send_device="nowhere")),
            "wrong_incarnation": refused(request(send_device_incarnation=incarnation ^ 1)),
            # As in TensorFlow, only the local part of the device and its incarnation are looked at.
            "wrong_job": given_up(
                request(send_device="/job:elsewhere/replica:0/task:0/device:CPU:0"), 105
            ),
            "semicolons": refused(request(names=["a", "b;c;d;e;f"])),
            "too_many_names": refused(request(names=[f"{i}" for i in range(2**20 + 1)])),
            "duplicate_request": duplicate,
            "aborted_early": aborted_early,
            "postponed": refused(request(), step=107),
            "probe": refused(request(names=[])),
            "other_type_url": refused(request(), type_url="type.googleapis.com/some.Other"),
            "unknown_step": given_up(request(), 100),
            "many_names": given_up(request(names=[f"t{i}" for i in range(100_000)]), 101),
            "nul_bytes": refused(request(names=["a\0b", "\0"])),
            "equal_names": refused(request(names=["a", "a", "a"])),
            "empty_name": refused(request(names=["a", ""])),
            "random": random_bytes,
            "step_after": step,
            "pending": pending,
            "alive": lambda: job.cluster._tasks["ps:0"].process.poll() is None,
        }
    )


if __name__ == "__main__":
    assert len(sys.argv) == 1
    _main()
