# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Records the requests and frames of a small cluster as inputs of the fuzzer of requests.

    python tests/fault/record_traffic.py cc/testing/requests/corpus

A worker and a server run some functions, fused by level and then dynamically; each is reached
through a proxy of this process, which passes on what it gets and looks into it. Needs no privilege,
and changes nothing in the tasks. What was recorded before is overwritten.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.fault import http2_proxy

_FUSED = b"tf_fuse.v1.FuseRecvTensorRequest"
_BY_PARTS = b"tf_fuse.v1.parts/"
_FRAME = b"TFFR"
_MAX_BYTES = 1500  # of one input: larger ones are like smaller ones
# Of cc/testing/requests/request_fuzz.cc: kinds of inputs, and plans that send what is asked for, as
# the task's own. By parts: half of it, then the rest; rests are those of other requests of the
# task.
_REQUEST, _ANSWER, _ANSWER_BY_PARTS = 0, 2, 5
_PLANS = {"request": bytes([128 | 2, 0]), "partial_request": bytes([128 | 4 | 2, 64 | 32 | 1])}


class _Recorder:
    """Keeps what is of interest of one connection with gRPC."""

    def __init__(self, found: list[tuple[str, bytes]]):
        self._found = found
        self._fused: dict[int, str] = {}
        # By whether they are of the client, and stream.
        self._bodies: dict[tuple[bool, int], bytes] = defaultdict(bytes)

    def __call__(self, is_client: bool, frame: http2_proxy.Frame) -> None:
        if frame.kind != http2_proxy.DATA:
            return
        body = self._bodies[is_client, frame.stream] + frame.payload  # gRPC does not pad it
        while len(body) >= 5 and len(body) >= 5 + int.from_bytes(body[1:5], "big"):
            end = 5 + int.from_bytes(body[1:5], "big")
            self._look(is_client, frame.stream, body[5:end])
            body = body[end:]
        self._bodies[is_client, frame.stream] = body

    def _look(self, is_client: bool, stream: int, message: bytes) -> None:
        if is_client and _FUSED in message:
            self._fused[stream] = "partial_" if _BY_PARTS in message else ""
            self._found.append((self._fused[stream] + "request", message))
        elif not is_client and stream in self._fused and _FRAME in message:
            frame = message[message.index(_FRAME) :]
            self._found.append((self._fused[stream] + "frame", frame))


def as_input(kind: str, message: bytes) -> bytes:
    """The fuzzer's input that holds a recorded message."""
    if kind in _PLANS:
        return bytes([_REQUEST]) + _PLANS[kind] + message
    types = [dtype for _, _, _, dtype in _records(message)]
    if kind == "frame":
        return bytes([_ANSWER, 0, len(types)]) + bytes(types) + message
    # Of what was asked for and did not come, the types are not known.
    asked = [1] * (_positions(message)[-1] + 1)
    for position, dtype in zip(_positions(message), types[1:], strict=True):
        asked[position] = dtype
    return bytes([_ANSWER_BY_PARTS, 0, len(asked)]) + bytes(asked) + message


def _records(frame: bytes) -> list[tuple[int, int, int, int]]:
    """The first bytes of each slot's record: encoding, flags, rank, type (cc/frame/frame.h)."""
    records, at = [], 32
    for _ in range(struct.unpack_from("<I", frame, 12)[0]):
        records.append((frame[at], frame[at + 1], frame[at + 2], frame[at + 4]))
        at += 24 + 8 * frame[at + 2]
    return records


def _positions(frame: bytes) -> tuple[int, ...]:
    """What the first slot of an answer by parts says: the tensors that follow."""
    offset, size = struct.unpack_from("<QQ", frame, 32 + 8)
    return struct.unpack_from(f"<{size // 4}i", frame, offset)


def shape_of(kind: str, data: bytes) -> Any:
    """Equal for inputs that show the same."""
    if kind in _PLANS:
        return kind, len(data) // 40
    count = data[2]
    return kind, count, tuple(_records(data[3 + count :]))


def _run_task(spec: str) -> None:
    import tensorflow as tf

    import tf_fuse  # noqa: F401

    given = json.loads(spec)
    server_def = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec(given["cluster"]).as_cluster_def(),
        job_name=given["job"],
        task_index=0,
        protocol="grpc+fuse",
        port=given["port"],
    )
    tf.distribute.Server(server_def).join()


def _steps(strategy: Any) -> None:
    """Functions with all that a frame can hold."""
    import tensorflow as tf

    ps, worker = "/job:ps/replica:0/task:0/cpu:0", "/job:worker/replica:0/task:0"
    with tf.device(ps):
        numbers = [tf.Variable([float(i), 2.0]) for i in range(4)]
        texts = [tf.Variable(["a", "text"]), tf.Variable("another")]

    @tf.function
    def reads():
        return tf.add_n([v.read_value() for v in numbers]) + 1.0

    @tf.function
    def all_kinds():
        with tf.device(ps):
            empty = tf.zeros([0, 3]) + tf.reduce_sum(numbers[0])
            flag = tf.reduce_sum(numbers[1]) > 0.0
            listed = tf.TensorArray(tf.float32, 2, element_shape=[2]).unstack(
                tf.stack([numbers[0].read_value(), numbers[1].read_value()])
            )
            flow = listed.flow
        with tf.device(worker):
            return (
                tf.strings.join([texts[0].read_value(), texts[1].read_value()]),
                tf.size(empty),
                flag,
                tf.raw_ops.TensorListLength(input_handle=flow),
                numbers[2].read_value() * 2.0,
            )

    @tf.function
    def branches(x):
        if tf.reduce_sum(numbers[0].read_value()) > x:
            return numbers[1].read_value() * numbers[2].read_value()
        return numbers[2].read_value() - numbers[3].read_value()

    @tf.function
    def loops(n):
        total = tf.zeros([2])
        for i in tf.range(n):
            total += numbers[0].read_value() * numbers[1].read_value() + tf.cast(i, tf.float32)
        return total

    @tf.function
    def updates():
        for v in numbers:
            v.assign_add([1.0, 1.0])
        return tf.add_n([v.read_value() for v in numbers])

    with tf.device(worker):
        reads(), all_kinds(), branches(0.0), branches(99.0), loops(2), updates()


def _coordinate(spec: str) -> None:
    import tensorflow as tf

    import tf_fuse

    tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(json.loads(spec)["cluster"]), rpc_layer="grpc+fuse"
    )

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    _steps(strategy)
    tf_fuse.cluster_metrics(), tf_fuse.cluster_waiting()
    tf.config.optimizer.set_experimental_options({"fuse_grouping": "dynamic"})
    _steps(strategy)
    os._exit(0)  # a process with a server hangs otherwise


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(folder: Path) -> None:
    """Runs the cluster and writes the inputs."""
    found: list[tuple[str, bytes]] = []
    ports = {job: _free_port() for job in ("worker", "ps")}
    proxies = {
        job: http2_proxy.Proxy(port, lambda: _Recorder(found)) for job, port in ports.items()
    }
    cluster = {job: [f"127.0.0.1:{proxy.port}"] for job, proxy in proxies.items()}
    environ = {**os.environ, "GRPC_FAIL_FAST": "use_caller", "TF_CPP_MIN_LOG_LEVEL": "2"}

    def start(role: str, **spec: Any) -> subprocess.Popen[bytes]:
        # Processes of their own: while it waits for a task, TensorFlow lets no other thread run.
        command = [sys.executable, __file__, role, json.dumps({"cluster": cluster, **spec})]
        return subprocess.Popen(command, env=environ)

    tasks = [start("--task", job=job, port=port) for job, port in ports.items()]
    coordinator = start("--coordinate")
    try:
        if coordinator.wait(timeout=300) != 0:
            raise SystemExit("the coordinator failed; what it printed stands above")
    finally:
        for process in (*tasks, coordinator):
            process.kill()
            process.wait()
    kept: dict[Any, bytes] = {}
    for kind, message in found:
        data = as_input(kind, message)
        if len(data) <= _MAX_BYTES:
            kept.setdefault(shape_of(kind, data), data)
    folder.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, int] = defaultdict(int)
    for (kind, *_), data in kept.items():
        numbers[kind] += 1
        (folder / f"recorded_{kind}_{numbers[kind]}").write_bytes(data)
    print(f"{len(found)} messages, {dict(numbers)} kept, {sum(map(len, kept.values()))} bytes")


if __name__ == "__main__":
    roles = {"--task": _run_task, "--coordinate": _coordinate}
    if sys.argv[1] in roles:
        roles[sys.argv[1]](sys.argv[2])
    else:
        main(Path(sys.argv[1]))
