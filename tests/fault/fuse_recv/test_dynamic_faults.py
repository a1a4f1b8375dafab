# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Deaths, errors, cancellations and bad requests with fuse_grouping="dynamic".

Stock TensorFlow runs those cases that it has, too.
"""

import re
import sys

import pytest

from tests.fault import coordinator, table, worker_service
from tests.fault.queue_steps import QueueSteps

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_STEPS = 10
_NAME = re.compile(r"edge_\d+_[\w/]+")
_SUM = 66.0  # 0 + 1 + ... + 11
_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in ("stock", "on")}


@pytest.fixture(scope="module")
def cases(runs):
    return runs["on"]


@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case):
    table.check(__file__, case, runs["stock"][case], runs["on"][case])


def test_values_are_stocks(runs):
    for mode in runs:
        assert runs[mode]["cancelled_step"]["after"] == [_SUM] * _STEPS
        assert runs[mode]["worker_killed"]["sums"] == [_SUM + 9.0] * 2


def test_op_error_has_the_senders_code_and_names_one_tensor(cases):
    assert (cases["op_error"]["raised"], cases["op_error"]["code"]) == ("InvalidArgumentError", 3)
    assert "is not in [0, 4)" in cases["op_error"]["text"]
    assert "[[fused receive of 1 tensor from /job:ps/replica:0/task:" in cases["op_error"]["text"]
    assert cases["after_op_error"] == [_SUM] * _STEPS


def test_cancelled_step_leaves_nothing_behind(cases):
    case = cases["cancelled_step"]
    assert case["entered"] is True
    assert case["left"] == {"pending_requests": 0, "partial_tensors": 0, "pending_receives": 0}


def test_worker_killed_while_it_waits(cases):
    case = cases["worker_killed"]
    assert case["entered"] is True
    assert case["left"] == {"pending_requests": 0, "partial_tensors": 0}


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("nothing", "INVALID_ARGUMENT", "a request by parts asks for no tensor"),
        ("equal_names", "INVALID_ARGUMENT", "tensor 1 of 2: the name 'a' stands in the request"),
        ("wrong_incarnation", "ABORTED", "RecvTensor expects a different device incarnation"),
        ("rest_of_incarnation", "ABORTED", "RecvTensor expects a different device incarnation"),
        ("no_request_id", "INVALID_ARGUMENT", "a request by parts has no request id"),
        ("duplicate", "ABORTED", "FuseRecvTensor (tf_fuse) request was received twice"),
    ],
)
def test_bad_requests_are_rejected(cases, case, code, text):
    assert cases[case]["code"] == code
    assert text in cases[case]["details"]
    assert cases[case]["counters"]["rejected_requests"] == 1


def test_the_rest_of_an_answer_that_left_none(cases):
    assert cases["no_rest"] == {
        "code": "INVALID_ARGUMENT",
        "details": "FuseRecvTensorRequest: the rest of request 4711 was asked for, but no answer "
        "of this step left one",
    }


def test_nothing_is_left_at_the_end(cases):
    gauges = {"pending_requests": 0, "pending_bytes": 0, "partial_tensors": 0}
    assert cases["left_at_the_end"] == gauges


def test_dynamic_requests_that_wait_are_reported_by_both_tasks(cases):
    """How many there are is a matter of timing: each names what the last answer left."""
    case = cases["stalled"]
    assert case["names"]["worker"] == case["names"]["ps"] and len(case["names"]["ps"]) == 3
    for line in case["lines"]["worker"]:
        count = len(_NAME.findall(line))
        assert f"has waited for {count} of {count} tensors of /job:ps/replica:0/task:0" in line
        assert "They have not been computed there." in line
    for line in case["lines"]["ps"]:
        count = len(_NAME.findall(line))
        assert f"has waited for {count} of {count} tensors of this task" in line
        assert "They have not been computed here." in line
    for sending in (False, True):
        listed = [w for w in case["waiting"] if w["sending"] == sending]
        assert sorted(n for w in listed for n in w["tensor_names"]) == case["names"]["ps"]
        assert all(w["tensors"] == len(w["tensor_names"]) for w in listed)
        assert all(w["missing"] == (w["tensors"] if sending else None) for w in listed)


def _main(mode):
    import tensorflow as tf

    job = coordinator.Job(mode, 2, 2, env={"TF_FUSE_STALL_WARN_MS": "200"})
    if mode == "on":
        tf.config.optimizer.set_experimental_options({"fuse_grouping": "dynamic"})
    program = QueueSteps(job)
    fails, blocks, queue = program.fails, program.blocks, program.queue

    def steps():
        return program.run(_STEPS)

    def left(*names):
        now = lambda: {name: sum(job.by_task(name).values()) for name in names}  # noqa: E731
        coordinator.wait_until(lambda: not any(now().values()))
        return now()

    bad = tf.constant(1000)
    gauges = ("pending_requests", "pending_bytes", "partial_tensors")

    def op_error():
        # The error of the server's own part may be reported first, alone.
        for _ in range(50):
            error = coordinator.caught(lambda: job.call(fails, (bad,)))
            if "[[fused receive of" in error.get("text", ""):
                break
        return error

    def stalled():
        """Of a worker that waits for what depends on a queue, and of its server."""

        def reports():
            return {
                (task.split(":")[0], line.split("tf_fuse: ")[1])
                for task in ("worker:0", "worker:1", "ps:0")
                for line in job.cluster.logs(task).splitlines()
                if "has waited" in line
            }

        before = reports()
        program.enter(blocks, 1)

        def lines():
            new = sorted(reports() - before)
            return {job: [line for j, line in new if j == job] for job in ("worker", "ps")}

        def names():
            return {job: sorted(_NAME.findall(" ".join(ls))) for job, ls in lines().items()}

        coordinator.wait_until(lambda: [len(n) for n in names().values()] == [4, 4])
        waiting = [w for tasks in tf_fuse.cluster_waiting().values() for w in tasks or []]
        queue.enqueue(1.0)
        job.coordinator.join()
        # Without the time that each has waited.
        said = {job: [re.sub(r" \d+\.\d s", "", x) for x in ls] for job, ls in lines().items()}
        return {"lines": said, "names": names(), "waiting": waiting}

    def cancelled_step():
        _, is_in = program.enter(blocks, 1)
        job.coordinator.schedule(fails, args=(bad,))
        result = table.observe(job.coordinator.join)
        result |= {"entered": is_in, "after": steps()}
        result["left"] = left("pending_requests", "partial_tensors", "pending_receives")
        return result

    def worker_killed():
        results, is_in = program.enter(blocks, 2)
        if mode == "on":
            coordinator.wait_until(lambda: sum(job.by_task("pending_requests").values()) == 2)
        job.cluster.kill("worker:1")
        # One for each step, for its second try, and for what the dead worker's may still take.
        for _ in range(4):
            queue.enqueue(1.0)
        result = table.observe(job.coordinator.join)
        sums = [float(r.fetch()) for r in results]
        program.empty_queue()
        return result | {
            "entered": is_in,
            "sums": sums,
            "left": left("pending_requests", "partial_tensors"),
        }

    def ps_killed():
        program.enter(blocks, 1)
        job.cluster.kill("ps:0")
        return table.observe(job.coordinator.join)

    kills = {"worker_killed": worker_killed, "ps_killed": ps_killed}
    if mode == "stock":
        steps()
        coordinator.finish({"cancelled_step": cancelled_step} | kills)
        return

    import tf_fuse

    # Requests of a peer that is not one of ours.
    ps_task = "/job:ps/replica:0/task:0"
    peer = worker_service.Peer(job.cluster.cluster_spec["ps"][0], ps_task)

    def on_ps():
        return tf_fuse.cluster_metrics()[ps_task]

    def start(names=(), step=99, request_id=None, **fields):
        value = peer.fused_request(names, _WORKER, **fields)
        request = peer.recv_tensor(value, step, worker_service.TYPE_URL_OF_PARTS, request_id)
        return peer.method("RecvTensor").future(request, timeout=20)

    def send(*args, **kwargs):
        answer = start(*args, **kwargs)
        return {"code": answer.code().name, "details": answer.details()}

    def rejected(*args, **kwargs):
        def case():
            before = on_ps()
            result = send(*args, **kwargs)
            now = on_ps()
            nested = ("skipped", "waits")
            grown = {k: v - before[k] for k, v in now.items() if k not in nested and v != before[k]}
            return {**result, "counters": grown}

        return case

    def duplicate():
        before = on_ps()
        first = start(["a"], step=104, request_id=77)
        coordinator.wait_until(lambda: on_ps()["pending_requests"] > before["pending_requests"])
        first.cancel()
        coordinator.wait_until(lambda: on_ps()["cancelled_requests"] > before["cancelled_requests"])
        return rejected(["a"], step=104, request_id=77)()

    def with_an_open_step():
        """Begins a step that waits, and finds its number."""
        _, _ = program.enter(blocks, 1)

        def find():
            waiting = tf_fuse.cluster_waiting()[ps_task] or []
            return [w["step_id"] for w in waiting if w.get("sending")]

        step = int(coordinator.wait_until(find)[0])
        result = send(step=step, rest_of_requests=[4711])
        queue.enqueue(1.0)
        job.coordinator.join()
        return result

    steps()
    coordinator.finish(
        {
            "op_error": op_error,
            "after_op_error": steps,
            "cancelled_step": cancelled_step,
            "stalled": stalled,
            "nothing": rejected(),
            "no_request_id": rejected(["a"], request_id=0),
            "equal_names": rejected(["a", "a"]),
            "wrong_incarnation": rejected(["a"], send_device_incarnation=peer.incarnation ^ 1),
            "rest_of_incarnation": rejected(
                rest_of_requests=[1], send_device_incarnation=peer.incarnation ^ 1
            ),
            "duplicate": duplicate,
            "no_rest": with_an_open_step,
            "left_at_the_end": lambda: left(*gauges),
        }
        | kills
    )


if __name__ == "__main__":
    _main(sys.argv[1])
