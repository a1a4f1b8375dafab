# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A fused receive that waits too long says once which tensors are missing, and from which task."""

import re

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_WORKER = "/job:worker/replica:0/task:"
_PS = "/job:ps/replica:0/task:"
_ONCE = "(Logged once per receive, after TF_FUSE_STALL_WARN_MS=N.)"
_QUEUES = 12
_NAME = re.compile(r"edge_\d+_[\w/]+")
# The value that waits, and that the function's side effect has happened.
_MISSING = ["waits_for_pipe"]


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


def _without_numbers(line):
    """What is left of a log line: without its head, step id, time waited and numbers in names."""
    text = line[line.index("tf_fuse: ") + len("tf_fuse: ") :]
    text = re.sub(r"step -?\d+", "step N", text)
    text = re.sub(r"waited \d+\.\d s", "waited N s", text)
    text = re.sub(r"WARN_MS=\d+", "WARN_MS=N", text)
    return _NAME.sub("NAME", text)


def _ends(names):
    """The names without their numbers, in sorted order."""
    return sorted(re.sub(r"^edge_\d+_", "", name) for name in names)


def test_some_of_many_tensors_are_missing(cases):
    case = cases["missing"]
    (received,) = case["logs"]["worker:0"]
    (sent,) = case["logs"]["ps:0"]
    assert _without_numbers(received) == (
        f"{_WORKER}0, step N: a fused receive has waited N s for 1 of 6 tensors of {_PS}0: NAME. "
        f"They have not been computed there. {_ONCE}"
    )
    assert _without_numbers(sent) == (
        f"{_PS}0, step N: {_WORKER}0 has waited N s for 1 of 6 tensors of this task: NAME. "
        f"They have not been computed here. {_ONCE}"
    )
    assert _ends(_NAME.findall(received)) == _ends(_NAME.findall(sent)) == _MISSING
    assert len(set(re.findall(r"step -?\d+", received + sent))) == 1
    assert case["stalled"] == {"stalled_receives": 1, "stalled_requests": 1}
    assert case["value"] == 15.0 + 49.0


def test_waiting_receives_are_listed_by_both_tasks(cases):
    worker, ps = cases["missing"]["waiting"]["worker:0"], cases["missing"]["waiting"]["ps:0"]
    step_id = worker[0]["step_id"]
    names = worker[0].pop("tensor_names")
    assert worker[0].pop("waited_s") > 0 and ps[0].pop("waited_s") > 0
    assert len(names) == 6
    assert set(_ends(names)) > set(_ends(ps[0].pop("tensor_names"))) == set(_MISSING)
    common = {"step_id": step_id, "tensors": 6, "step_not_begun": False, "one_by_one": False}
    assert worker == [
        {"task": f"{_WORKER}0", "peer": f"{_PS}0", "sending": False, "missing": None, **common}
    ]
    assert ps == [
        {"task": f"{_PS}0", "peer": f"{_WORKER}0", "sending": True, "missing": 1, **common}
    ]


def test_nothing_is_listed_afterwards(cases):
    assert cases["afterwards"] == {
        "waiting": {"worker:0": [], "worker:1": [], "ps:0": []},
        "pending": {"pending_receives": 0, "pending_requests": 0},
    }


def test_one_by_one(cases):
    case = cases["one_by_one"]
    (received,) = case["logs"]["worker:0"]
    assert _without_numbers(received) == (
        f"{_WORKER}0, step N: a fused receive has waited N s for 1 of 4 tensors of {_PS}1: NAME. "
        f"They travel one by one. {_ONCE}"
    )
    assert case["value"] == 15.0 + 49.0
    (listed,) = case["waiting"]["worker:0"]
    assert (listed["one_by_one"], listed["missing"], listed["tensors"]) == (True, 1, 4)
    assert "ps:1" not in case["logs"]


def test_zero_switches_reports_off(cases):
    # The coordinator's own process receives; its limit is 0.
    case = cases["off"]
    assert case["stalled"] == {"stalled_requests": 1}
    assert case["value"] == 15.0 + 49.0
    assert [w["sending"] for w in case["waiting"]["chief:0"]] == [False]
    (sent,) = case["logs"]["ps:0"]
    assert "/job:chief/replica:0/task:0 has waited" in sent


def test_a_sender_that_does_not_answer(cases):
    case = cases["stopped"]
    (received,) = case["logs"]["worker:0"]
    assert _without_numbers(received) == (
        f"{_WORKER}0, step N: a fused receive has waited N s for its 5 tensors of {_PS}0: NAME, "
        "NAME, NAME, NAME, NAME. Asked which are missing, it gave no answer within 5 s: "
        f"DEADLINE_EXCEEDED. {_ONCE}"
    )
    assert case["waiting"]["ps:0"] is None
    assert case["value"] == 15.0


def test_a_step_that_has_not_begun(cases):
    case = cases["not_begun"]
    (sent,) = case["logs"]["ps:0"]
    assert _without_numbers(sent) == (
        f"{_PS}0, step N: {_WORKER}0 has waited N s for 2 of 2 tensors of this task: a, b\\nc. "
        f"The step has not begun here. {_ONCE}"
    )
    (listed,) = case["waiting"]["ps:0"]
    assert (listed["step_not_begun"], listed["tensor_names"]) == (True, ["a", "b\nc"])
    assert case["value"] == "CANCELLED"


def test_questions_of_a_receiver(cases):
    known = {"found": True, "step_not_begun": True, "missing": [0, 1]}
    assert cases["questions"] == {"known": known, "unknown": {}, "no question": ""}


def test_at_most_ten_reports_in_a_minute(cases):
    case = cases["many"]
    lines = case["logs"]["worker:1"]
    assert len(lines) == 10
    assert _without_numbers(lines[0]) == (
        f"{_WORKER}1, step N: a fused receive has waited N s for 2 of 2 tensors of {_PS}0: NAME, "
        f"NAME. They have not been computed there. {_ONCE}"
    )
    assert len({tuple(_NAME.findall(line)) for line in lines}) == 10
    (more,) = case["more"]["worker:1"]
    assert more.endswith(
        "tf_fuse: more fused receives wait than the 10 that are reported in a minute; "
        "tf_fuse.cluster_waiting() lists them all."
    )
    assert case["stalled"] == {"stalled_receives": _QUEUES, "stalled_requests": _QUEUES}
    assert len(case["waiting"]["worker:1"]) == _QUEUES
    assert case["value"] == sum(3.0 * i for i in range(_QUEUES))


def _main():
    import os
    import struct
    import tempfile
    import threading

    os.environ["TF_FUSE_STALL_WARN_MS"] = "0"  # of this process
    import grpc
    import tensorflow as tf
    from google.protobuf import any_pb2, json_format
    from tensorflow.core.framework import device_attributes_pb2, tensor_pb2

    import tf_fuse
    from tf_fuse.v1 import fuse_recv_pb2

    protocol = {"worker": "grpc+fuse", "ps:0": "grpc+fuse", "ps:1": "grpc", "chief": "grpc+fuse"}
    job = coordinator.Job("on", 2, 2, protocol, env={"TF_FUSE_STALL_WARN_MS": "200"})
    folder = tempfile.TemporaryDirectory()
    pipe = f"{folder.name}/pipe"
    os.mkfifo(pipe)

    def reader(ps, values, waits):
        """A function that reads variables of a server, one of them after something was printed."""
        with tf.device(f"{_PS}{ps}"):
            variables = [tf.Variable(value) for value in values]
            last = tf.Variable(7.0)

        @tf.function
        def read():
            total = tf.add_n([v.read_value() for v in variables])
            if not waits:
                return total
            with tf.device(f"{_PS}{ps}"):
                # Opening a named pipe waits until somebody reads from it.
                printed = tf.print("here", output_stream=f"file://{pipe}")
                with tf.control_dependencies([printed]):
                    late = tf.square(last.read_value(), name="waits_for_pipe")
            return total + late

        return read

    def short(task):
        return task.removeprefix("/job:").replace("/replica:0/task:", ":")

    def reports(text):
        """The lines with a text in the log of each task, in order."""
        logs = {task: job.cluster.logs(task).splitlines() for task in job.cluster.tasks}
        found = {task: [x for x in lines if text in x] for task, lines in logs.items()}
        return {task: lines for task, lines in found.items() if lines}

    def counted(*names):
        tasks = tf_fuse.cluster_metrics().values()
        return {name: sum(counters.get(name, 0) for counters in tasks) for name in names}

    def stalled():
        return counted("stalled_receives", "stalled_requests")

    def while_it_waits(function, device, expected, expected_stalls, release):
        """Calls a function that waits, until the expected numbers of reports have been logged."""
        logs_before, stalled_before = reports("has waited"), stalled()
        result = []

        def call():
            with tf.device(device):
                result.append(function())

        thread = threading.Thread(target=call)
        thread.start()

        def new_lines():
            now = reports("has waited")
            new = {task: lines[len(logs_before.get(task, [])) :] for task, lines in now.items()}
            return {task: lines for task, lines in new.items() if lines}

        coordinator.wait_until(
            lambda: all(len(new_lines().get(task, [])) == n for task, n in expected.items()), 60
        )

        def new_stalls():
            growth = {k: n - stalled_before[k] for k, n in stalled().items()}
            return {k: n for k, n in growth.items() if n > 0}

        if expected_stalls:
            coordinator.wait_until(lambda: new_stalls() == expected_stalls)
        waiting = tf_fuse.cluster_waiting(timeout_s=3)
        case = {
            "logs": new_lines(),
            "more": reports("more fused receives wait"),
            "waiting": {short(task): receives for task, receives in waiting.items()},
            "stalled": new_stalls() if expected_stalls else {},
        }
        release()
        thread.join(60)
        case["value"] = float(result[0]) if tf.is_tensor(result[0]) else result[0]
        return case

    def read_pipe():
        with open(pipe) as file:
            assert file.read() == "here\n"

    both = {"stalled_receives": 1, "stalled_requests": 1}

    def missing():
        read = reader(0, [1.0, 2.0, 3.0, 4.0, 5.0], waits=True)
        return while_it_waits(read, f"{_WORKER}0", {"worker:0": 1, "ps:0": 1}, both, read_pipe)

    def one_by_one():
        read = reader(1, [4.0, 5.0, 6.0], waits=True)
        stalls = {"stalled_receives": 1}
        return while_it_waits(read, f"{_WORKER}0", {"worker:0": 1}, stalls, read_pipe)

    def off():
        read = reader(0, [4.0, 5.0, 6.0], waits=True)
        stalls = {"stalled_requests": 1}
        return while_it_waits(read, "/job:chief/replica:0/task:0", {"ps:0": 1}, stalls, read_pipe)

    def stopped():
        read = reader(0, [1.0, 2.0, 3.0, 4.0, 5.0], waits=False)
        with tf.device(f"{_WORKER}0"):
            read()
        job.cluster.stop("ps:0")
        return while_it_waits(
            read,
            f"{_WORKER}0",
            {"worker:0": 1},
            {},  # whoever asks would wait for the stopped server
            lambda: job.cluster.cont("ps:0"),
        )

    def many():
        with tf.device(f"{_PS}0"):
            queues = [
                tf.queue.FIFOQueue(1, [tf.float32], shapes=[[]], shared_name=f"queue_{i}")
                for i in range(_QUEUES)
            ]

        @tf.function
        def dequeue():
            values = []
            for queue in queues:
                with tf.device(f"{_PS}0"):
                    value = queue.dequeue()
                    values += [value + 0.0, value * 2.0]
            return tf.add_n([tf.identity(v) for v in values])

        def fill():
            for i, queue in enumerate(queues):
                queue.enqueue(float(i))

        stalls = dict.fromkeys(both, _QUEUES)
        return while_it_waits(dequeue, f"{_WORKER}1", {"worker:1": 10}, stalls, fill)

    def request_by_hand():
        """A function that sends requests to ps:0 as a receiver would."""
        from tests.fault import worker_service

        messages = worker_service.messages()
        list_of_bytes = messages["GetStatusResponse"]  # by its fields
        channel = grpc.insecure_channel(job.cluster.cluster_spec["ps"][0])
        recv_tensor = channel.unary_unary("/tensorflow.WorkerService/RecvTensor")
        answer = channel.unary_unary("/tensorflow.WorkerService/GetStatus")(b"")
        attributes = [
            device_attributes_pb2.DeviceAttributes.FromString(data)
            for data in list_of_bytes.FromString(answer).device_attributes
        ]
        incarnation = next(x.incarnation for x in attributes if x.device_type == "CPU")

        def send(request_id, names=(), **fields):
            request = fuse_recv_pb2.FuseRecvTensorRequest(
                frame_version=3,
                send_device=f"{_PS}0/device:CPU:0",
                send_device_incarnation=incarnation,
                recv_device=f"{_WORKER}0/device:CPU:0",
                tensor_names=names,
                **fields,
            )
            options = any_pb2.Any()
            options.Pack(request)
            message = messages["RecvTensorRequest"](
                step_id=12345,
                transport_options=options.SerializeToString(),
                request_id=request_id,
            )
            return recv_tensor.future(message.SerializeToString(), timeout=60)

        def bytes_of(answer):
            """The payload of the first slot of the frame; cc/frame/frame.h has the layout."""
            tensor = list_of_bytes.FromString(answer.result()).device_attributes[0]
            frame = tensor_pb2.TensorProto.FromString(tensor).tensor_content
            offset, size = struct.unpack_from("<QQ", frame, 32 + 8)
            return frame[offset : offset + size]

        return send, bytes_of

    questions = {}

    def not_begun():
        send, bytes_of = request_by_hand()
        sent = []

        def call():
            sent.append(send(4711, ["a", "b\nc"]))
            return sent[0].code().name

        def missing_of(request_id):
            answer = bytes_of(send(request_id + 1, stalled_request_id=request_id))
            return json_format.MessageToDict(
                fuse_recv_pb2.StallAnswer.FromString(answer), preserving_proto_field_name=True
            )

        def release():
            questions["known"] = missing_of(4711)
            questions["unknown"] = missing_of(4713)
            questions["no question"] = bytes_of(send(4720, question=99)).hex()
            sent[0].cancel()

        stalls = {"stalled_requests": 1}
        return while_it_waits(call, f"{_PS}0", {"ps:0": 1}, stalls, release)

    def afterwards():
        names = ("pending_receives", "pending_requests")
        coordinator.wait_until(lambda: not any(counted(*names).values()))
        waiting = {short(task): w for task, w in tf_fuse.cluster_waiting().items()}
        return {
            "waiting": {task: waiting[task] for task in ("worker:0", "worker:1", "ps:0")},
            "pending": counted(*names),
        }

    coordinator.finish(
        {
            "missing": missing,
            "one_by_one": one_by_one,
            "off": off,
            "not_begun": not_begun,
            "questions": lambda: questions,
            "stopped": stopped,
            "many": many,
            "afterwards": afterwards,
        }
    )


if __name__ == "__main__":
    _main()
