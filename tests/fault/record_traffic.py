# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Records the requests and frames of a small cluster as inputs of the fuzzer of requests.

    python tests/fault/record_traffic.py cc/transport/corpus

A worker and a server run some functions; each is reached through a proxy of this process, which
passes on what it gets and looks into it. Needs no privilege, and changes nothing in the tasks.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FUSED = b"tf_fuse.v1.FuseRecvTensorRequest"
_FRAME = b"TFFR"
_MAX_BYTES = 1500  # of one input: larger ones are like smaller ones
# Of cc/transport/request_fuzz.cc: a plan that sends what is asked for, as the task's own.
_REQUEST, _PLAN, _ANSWER = 0, bytes([128 | 2, 0]), 2


class Proxy:
    """Passes on connections to a port that is known later, and keeps what is of interest.

    Attributes:
      port: where it listens.
      target: where to.
    """

    def __init__(self, found: list[tuple[str, bytes]]):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.target = probe.getsockname()[1]
        self._found = found
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()  # the task is not there yet; its peer tries again
                continue
            fused: set[int] = set()
            for source, sink, kind in ((client, server, "request"), (server, client, "frame")):
                arguments = (source, sink, kind, fused)
                threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, source: Any, sink: Any, kind: str, fused: set[int]) -> None:
        reader = _Reader(kind == "request")
        try:
            while data := source.recv(1 << 16):
                for stream, message in reader.feed(data):
                    if kind == "request" and _FUSED in message:
                        fused.add(stream)
                        self._found.append((kind, message))
                    elif kind == "frame" and stream in fused and _FRAME in message:
                        self._found.append((kind, message[message.index(_FRAME) :]))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of the two has gone


class _Reader:
    """The messages of one direction of an HTTP/2 connection with gRPC, by stream."""

    def __init__(self, is_client: bool):
        self._data = b""
        self._preface = len(_PREFACE) if is_client else 0
        self._bodies: dict[int, bytes] = defaultdict(bytes)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        messages = []
        self._data += data
        if len(self._data) < self._preface:
            return []
        self._data, self._preface = self._data[self._preface :], 0
        while len(self._data) >= 9:
            size = int.from_bytes(self._data[:3], "big")
            if len(self._data) < 9 + size:
                break
            stream = int.from_bytes(self._data[5:9], "big")
            if self._data[3] == 0:  # DATA, which gRPC does not pad
                self._bodies[stream] += self._data[9 : 9 + size]
            self._data = self._data[9 + size :]
            body = self._bodies[stream]
            while len(body) >= 5 and len(body) >= 5 + int.from_bytes(body[1:5], "big"):
                end = 5 + int.from_bytes(body[1:5], "big")
                messages.append((stream, body[5:end]))
                body = body[end:]
            self._bodies[stream] = body
        return messages


def as_input(kind: str, message: bytes) -> bytes:
    """The fuzzer's input that holds a recorded message."""
    if kind == "request":
        return bytes([_REQUEST]) + _PLAN + message
    count = struct.unpack_from("<I", message, 12)[0]
    at, types = 32, b""
    for _ in range(count):
        encoding, rank, dtype = message[at], message[at + 2], message[at + 4]
        types += bytes([1 if encoding == 3 else dtype])
        at += 24 + 8 * rank
    return bytes([_ANSWER, 0, count]) + types + message


def shape_of(kind: str, data: bytes) -> Any:
    """Equal for inputs of which one is enough."""
    if kind == "request":
        return kind, len(data) // 40
    count = data[2]
    records, at = [], 3 + count + 32
    for _ in range(count):
        records.append((data[at], data[at + 1], data[at + 2], data[at + 4]))
        at += 24 + 8 * data[at + 2]
    return kind, tuple(records)


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
    import tf_fuse

    tf_fuse.cluster_metrics(), tf_fuse.cluster_waiting()


def _coordinate(spec: str) -> None:
    import tensorflow as tf

    import tf_fuse  # noqa: F401

    tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(json.loads(spec)["cluster"]), rpc_layer="grpc+fuse"
    )

    _steps(tf.distribute.ParameterServerStrategy(resolver))
    os._exit(0)  # a process with a server hangs otherwise


def main(folder: Path) -> None:
    """Runs the cluster and writes the inputs."""
    found: list[tuple[str, bytes]] = []
    proxies = {job: Proxy(found) for job in ("worker", "ps")}
    cluster = {job: [f"127.0.0.1:{proxy.port}"] for job, proxy in proxies.items()}
    environ = {**os.environ, "GRPC_FAIL_FAST": "use_caller", "TF_CPP_MIN_LOG_LEVEL": "2"}

    def start(role: str, **spec: Any) -> subprocess.Popen[bytes]:
        # Processes of their own: while it waits for a task, TensorFlow lets no other thread run.
        command = [sys.executable, __file__, role, json.dumps({"cluster": cluster, **spec})]
        return subprocess.Popen(command, env=environ)

    tasks = [start("--task", job=job, port=proxy.target) for job, proxy in proxies.items()]
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
    for (kind, _), data in kept.items():
        numbers[kind] += 1
        (folder / f"recorded_{kind}_{numbers[kind]}").write_bytes(data)
    print(f"{len(found)} messages, {dict(numbers)} kept, {sum(map(len, kept.values()))} bytes")


if __name__ == "__main__":
    roles = {"--task": _run_task, "--coordinate": _coordinate}
    if sys.argv[1] in roles:
        roles[sys.argv[1]](sys.argv[2])
    else:
        main(Path(sys.argv[1]))
