# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A server of "grpc+fuse" answers every malformed request with an error, and goes on serving."""

import sys

import pytest

from tests.fault import coordinator, worker_service

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
# Gauges among them: what a request held is given back a moment after its answer.
_NOT_COUNTED = {
    "skipped",
    "waits",
    "pending_requests",
    "pending_bytes",
    "unsent_frame_bytes",
    "remembered_requests",
    "open_steps",
}


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("garbage", "INVALID_ARGUMENT", "FuseRecvTensorRequest: not parseable, 5 bytes"),
        (
            "frame_version_1",
            "FAILED_PRECONDITION",
            "the receiver reads frames of version 1, this task writes version 3; install the same "
            "tf_fuse in all tasks",
        ),
        (
            "frame_version_4",
            "FAILED_PRECONDITION",
            "the receiver reads frames of version 4, this task writes version 3; install the same "
            "tf_fuse in all tasks",
        ),
        ("unknown_device", "INVALID_ARGUMENT", "/device:CPU:7 unknown device."),
        ("not_a_device", "INVALID_ARGUMENT", "FuseRecvTensorRequest: tensor 0 of 2: "),
        ("wrong_incarnation", "ABORTED", "RecvTensor expects a different device incarnation"),
        ("semicolons", "INVALID_ARGUMENT", "FuseRecvTensorRequest: tensor 1 of 2: "),
        ("empty_name", "INVALID_ARGUMENT", "FuseRecvTensorRequest: tensor 1 of 2: "),
        ("nul_bytes", "INVALID_ARGUMENT", r"tensor 0 of 2: the name 'a\x00\x62' has a NUL"),
        ("equal_names", "INVALID_ARGUMENT", "tensor 1 of 3: the name 'a' stands in the request"),
        (
            "too_many_names",
            "INVALID_ARGUMENT",
            "65537 tensor names, at most 65536 are served; TF_FUSE_MAX_KEYS_PER_REQUEST on this "
            "task raises the limit",
        ),
        (
            # 37 and 41 bytes of devices, 3958 of the name, 61 of the rest.
            "long_name",
            "INVALID_ARGUMENT",
            "tensor 1 of 2: its rendezvous key takes 4097 bytes, at most 4096 are served",
        ),
        ("long_device", "INVALID_ARGUMENT", "tensor 0 of 2: its rendezvous key takes 1000099 "),
        (
            "unknown_fields",
            "INVALID_ARGUMENT",
            "1069 bytes in other fields than devices and names, at most 1024 are read",
        ),
        (
            "long_rendezvous_key",
            "INVALID_ARGUMENT",
            "bytes around the FuseRecvTensorRequest, at most 1024 are read",
        ),
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


def test_what_is_remembered_of_requests_is_bounded(cases):
    # Of each it keeps message and keys, 45 to 50 MB, and 256 MiB in all: then it begins anew.
    counts = cases["remembered"]
    (begins_anew,) = [i for i in range(1, len(counts)) if counts[i] < counts[i - 1]]
    assert 4 <= begins_anew <= 5
    assert counts[begins_anew] <= 2  # the request, and the one for the counters


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
    assert cases["pending"] == {"before": [0, 0, 0], "after": [0, 0, 0]}


def _main():
    import random

    import tensorflow as tf

    import tf_fuse

    job = coordinator.Job("on", 1, 1)
    ps_task = "/job:ps/replica:0/task:0"
    peer = worker_service.Peer(job.cluster.cluster_spec["ps"][0], ps_task)
    recv_tensor = peer.method("RecvTensor")

    def on_ps():
        return tf_fuse.cluster_metrics()[ps_task]

    def start(value, step=99, timeout=20, **kwargs):
        return recv_tensor.future(peer.recv_tensor(value, step, **kwargs), timeout=timeout)

    def send(value, **kwargs):
        answer = start(value, **kwargs)
        return answer.code().name, answer.details()

    def request(names=("a", "b"), **fields):
        return peer.fused_request(list(names), **{"receiver": _WORKER} | fields)

    def growth(before):
        now = on_ps()
        return {
            k: v - before[k] for k, v in now.items() if k not in _NOT_COUNTED and v != before[k]
        }

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
        peer.clean_up(106)
        result = {"code": answer.code().name, "details": answer.details()}
        coordinator.wait_until(lambda: on_ps()["pending_requests"] == 0)
        return {**result, "counters": growth(before)}

    def duplicate():
        # The first one waits for a tensor that never comes, and is given up.
        before = on_ps()["cancelled_requests"]
        first = start(request(), step=104, request_id=77)
        coordinator.wait_until(lambda: on_ps()["pending_requests"] == 1)
        first.cancel()
        coordinator.wait_until(lambda: on_ps()["cancelled_requests"] > before)
        return refused(request(), step=104, request_id=77)()

    def remembered():
        counts = []
        for i in range(7):
            answer = start(request(names=[f"{i}_{j:0999}" for j in range(20_000)]), step=110 + i)
            coordinator.wait_until(lambda: on_ps()["pending_requests"] == 1)
            # Again and again: the step knows the request only when all of it has been read.
            coordinator.wait_until(lambda: (peer.clean_up(110 + i), answer.done())[1])  # noqa: B023
            counts.append(on_ps()["remembered_requests"])
        return counts

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

    def held():
        counters = on_ps()
        return [counters[k] for k in ("pending_requests", "pending_bytes", "unsent_frame_bytes")]

    def at_rest():
        return coordinator.settled(held, lambda found: found == [0, 0, 0])

    held_before = at_rest()

    def pending():
        return {"before": held_before, "after": at_rest()}

    device = f"{ps_task}/device:CPU:"
    coordinator.finish(
        {
            "step_before": step,
            "garbage": refused(b"\xff\xff\xff\xff\xff"),
            "frame_version_1": refused(request(frame_version=1)),
            "frame_version_4": refused(request(frame_version=4)),
            "unknown_device": refused(request(send_device=device + "7")),
            "not_a_device": refused(request(send_device="nowhere")),
            "wrong_incarnation": refused(request(send_device_incarnation=peer.incarnation ^ 1)),
            # As in TensorFlow, only the local part of the device and its incarnation are looked at.
            "wrong_job": given_up(
                request(send_device="/job:elsewhere/replica:0/task:0/device:CPU:0"), 105
            ),
            "semicolons": refused(request(names=["a", "b;c;d;e;f"])),
            "too_many_names": refused(request(names=[f"{i}" for i in range(2**16 + 1)])),
            "long_name": refused(request(names=["a", "b" * 3958])),
            "long_device": refused(request(receiver="d" * 1_000_000)),
            # Field 100, 1060 bytes: of a version to come, perhaps.
            "unknown_fields": refused(request() + b"\xa2\x06\xa4\x08" + bytes(1060)),
            "long_rendezvous_key": refused(request(), key="k" * 1024),
            "duplicate_request": duplicate,
            "aborted_early": aborted_early,
            "postponed": refused(request(), step=107),
            "probe": refused(request(names=[])),
            "other_type_url": refused(request(), type_url="type.googleapis.com/some.Other"),
            "unknown_step": given_up(request(), 100),
            "many_names": given_up(request(names=[f"t{i}" for i in range(2**16)]), 101),
            "remembered": remembered,
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
