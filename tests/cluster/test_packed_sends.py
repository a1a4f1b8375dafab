# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Frames that the sender's graph packs keep to the limits of both tasks, and what is said of them.

That values are the same bits, and what is packed, is in test_fuse_recv_modes.py.
"""

import re

import pytest
from fault import coordinator

pytestmark = pytest.mark.cluster

_WORKER = "/job:worker/replica:0/task:0"
_CHIEF = "/job:chief/replica:0/task:0"
_PS = "/job:ps/replica:0/task:"
_SIZES = (2, 4, 6, 8)  # of vectors of float32: 8, 16, 24 and 32 bytes
_SUM = 2.0 * (2 + 4 + 6 + 8)


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize(
    ("case", "beside"),
    [
        ("no limit", 0),
        # The receiver's 64 bytes: 8 + 16 + 24, and 32 would be too much.
        ("frame of the receiver", 1),
        # The sender's 16 bytes.
        ("tensors of the sender", 2),
        # The sender packs nothing at all.
        ("unsent frames of the sender", 4),
    ],
)
def test_what_is_above_a_limit_goes_beside_the_frame(cases, case, beside):
    counters = cases[case]["counters"]
    assert cases[case]["sum"] == _SUM
    assert counters["groups"] == counters["packed_groups"] == 1
    assert counters["fused_rpcs"] == counters["served_rpcs"] == 1
    assert counters.get("beside_tensors", 0) == beside
    assert "errors" not in counters and "served_errors" not in counters


def test_both_sides_tell_of_a_frame_that_is_waited_for(cases):
    (received,) = cases["stall"]["logs"]["worker:0"]
    (sent,) = cases["stall"]["logs"]["ps:0"]
    # The sender knows of one tensor, the frame; the receiver names all that are in it.
    assert "has waited N s for 2 of 2 tensors of /job:ps/replica:0/task:0: NAME, NAME." in received
    assert "They have not been computed there." in received
    assert "has waited N s for 1 of 1 tensors of this task: tf_fuse/NAME." in sent
    assert cases["stall"]["value"] == 3.0 * 5.0


def test_no_frame_is_left(cases):
    assert cases["afterwards"] == [0, 0, 0]


def _main():
    import threading

    import tensorflow as tf

    import tf_fuse

    job = coordinator.Job(
        "on",
        1,
        3,
        env={"TF_FUSE_STALL_WARN_MS": "200"},
        task_env={
            "worker:0": {"TF_FUSE_MAX_FRAME_BYTES": "64"},
            "ps:1": {"TF_FUSE_MAX_PACKED_TENSOR_BYTES": "16"},
            "ps:2": {"TF_FUSE_MAX_UNSENT_FRAME_BYTES": "0"},
        },
    )
    tf.config.optimizer.set_experimental_options(
        {"do_fuse_recv": True, "do_pack_sends": True, "fuse_grouping": "level"}
    )

    def read(ps, device):
        def case():
            with tf.device(f"{_PS}{ps}"):
                variables = [tf.Variable(tf.fill([n], 2.0)) for n in _SIZES]

            @tf.function
            def total():
                return tf.add_n([tf.reduce_sum(v.read_value() * 1.0) for v in variables])

            result = []

            def call():
                with tf.device(device):
                    result.append(float(total()))

            return {"counters": job.counted(call)["counters"], "sum": result[0]}

        return case

    def stall():
        with tf.device(f"{_PS}0"):
            queue = tf.queue.FIFOQueue(1, [tf.float32], shapes=[[]], shared_name="queue")

        @tf.function
        def dequeue():
            with tf.device(f"{_PS}0"):
                value = queue.dequeue()
                values = [value + 0.0, value * 2.0]
            return tf.add_n([tf.identity(v) for v in values])

        result = []

        def call():
            with tf.device(_WORKER):
                result.append(float(dequeue()))

        def logs():
            found = {}
            for task in ("worker:0", "ps:0"):
                lines = [x for x in job.cluster.logs(task).splitlines() if "has waited" in x]
                lines = [re.sub(r"waited \d+\.\d s", "waited N s", x) for x in lines]
                found[task] = [re.sub(r"edge_\d+_[\w/]+", "NAME", x) for x in lines]
            return found

        thread = threading.Thread(target=call)
        thread.start()
        coordinator.wait_until(lambda: all(logs().values()), 60)
        found = logs()
        queue.enqueue(5.0)
        thread.join(60)
        return {"logs": found, "value": result[0]}

    def afterwards():
        def held():
            tasks = tf_fuse.cluster_metrics().values()
            names = ("pending_receives", "pending_requests", "unsent_frame_bytes")
            return [sum(counters[name] for counters in tasks) for name in names]

        coordinator.wait_until(lambda: not any(held()))
        return held()

    coordinator.finish(
        {
            "no limit": read(0, _CHIEF),
            "frame of the receiver": read(0, _WORKER),
            "tensors of the sender": read(1, _CHIEF),
            "unsent frames of the sender": read(2, _CHIEF),
            "stall": stall,
            "afterwards": afterwards,
        }
    )


if __name__ == "__main__":
    _main()
