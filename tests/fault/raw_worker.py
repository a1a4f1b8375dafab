# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One task, spoken to as another task speaks to it: RPCs of TensorFlow's WorkerService by hand.

Steps, their ids, their requests' ids, and when what happens are the test's to choose. A step of
`Sender` sends "early" at once and "gated" when its gate is opened; it fails when the gate "failing"
is opened, and "never" is not sent at all.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.fault import coordinator
from tests.fault.worker_service import KEY_OF_NO_TENSOR, TYPE_URL, TYPE_URL_OF_PARTS, messages

RECEIVER = "/job:worker/replica:0/task:9/device:CPU:0"  # nobody: what is sent to it is asked for
TIMEOUT_S = 60.0  # no wait is longer

EARLY, GATED = 2.0, 3.0

_FRAME_HEADER_BYTES = 32


class Worker:
    """A client of one task's WorkerService.

    Attributes:
      device: the full name of the task's CPU.
      incarnation: of that device.
    """

    def __init__(self, address: str, task: str = "/job:worker/replica:0/task:0"):
        """Connects to a task that runs.

        Args:
          address: "host:port".
          task: the task's name.
        """
        import grpc
        from tensorflow.core.framework import device_attributes_pb2

        self._messages = messages()
        self._channel = grpc.insecure_channel(address)
        self.device = f"{task}/device:CPU:0"
        answer = self.call("GetStatus").result()
        devices = map(device_attributes_pb2.DeviceAttributes.FromString, answer.device_attributes)
        self.incarnation = next(x.incarnation for x in devices if x.name == self.device)
        self._request_ids = itertools.count(1000)

    def call(self, method: str, timeout: float = TIMEOUT_S, **fields: Any) -> Any:
        """Starts an RPC; returns its future."""
        rpc = self._channel.unary_unary(
            f"/tensorflow.WorkerService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._messages[f"{method}Response"].FromString,
        )
        return rpc.future(self._messages[f"{method}Request"](**fields), timeout=timeout)

    def close(self) -> None:
        """Ends all calls."""
        self._channel.close()

    def round_trips(self) -> None:
        """Returns once the task has answered a few calls: what was sent before has been taken."""
        for _ in range(5):
            self.call("GetStatus").result()

    def register(self, graph: Any, sends: Mapping[str, str]) -> str:
        """Registers a `tf.Graph` that also sends some of its tensors to nobody.

        Args:
          graph: its nodes are all put on the task's CPU.
          sends: name of what is sent to the name of the node that makes it.

        Returns:
          The handle to run it by.
        """
        from tensorflow.core.framework import graph_pb2

        definition = graph_pb2.GraphDef()
        definition.CopyFrom(graph.as_graph_def())
        for name, source in sends.items():
            dtype = graph.get_operation_by_name(source).outputs[0].dtype
            self.add_send(definition, name, source, dtype.as_datatype_enum)
        return self.register_definition(definition)

    def add_send(self, definition: Any, name: str, source: str, dtype: int) -> None:
        """Adds a node to a GraphDef that sends a tensor to nobody; see `register`."""
        node = definition.node.add(name=f"send_{name}", op="_Send", input=[source])
        node.attr["T"].type = dtype
        node.attr["tensor_name"].s = f"edge_{name}".encode()
        node.attr["send_device"].s = self.device.encode()
        node.attr["send_device_incarnation"].i = _signed(self.incarnation)
        node.attr["recv_device"].s = RECEIVER.encode()
        node.attr["client_terminated"].b = False

    def register_definition(self, definition: Any) -> str:
        """As `register`, of a GraphDef."""
        for node in definition.node:
            node.device = self.device
        call = self.call("RegisterGraph", graph_def=definition.SerializeToString())
        return str(call.result().graph_handle)

    def run(self, handle: str, step: int, timeout: float = TIMEOUT_S) -> Any:
        """Starts a step; its future ends with the step, and the step with it if it is dropped."""
        return self.call("RunGraph", timeout, graph_handle=handle, step_id=step)

    def cleanup(self, step: int) -> None:
        """Ends a step, as its client does when all tasks are done with it."""
        self.call("CleanupGraph", step_id=step).result()

    def receive(
        self,
        step: int,
        names: Sequence[str],
        *,
        request: int | None = None,
        fused: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Starts a receive, fused if it is of several tensors.

        Args:
          step: the step's id.
          names: what is asked for.
          request: the request's id; None for a new one.
          fused: further fields of the FuseRecvTensorRequest.
          **kwargs: of `call`.
        """
        request_id = next(self._request_ids) if request is None else request
        if len(names) == 1:
            key = f"{self.device};{self.incarnation:016x};{RECEIVER};edge_{names[0]};0:0"
            fields: dict[str, Any] = {"rendezvous_key": key}
        else:
            fields = {
                "rendezvous_key": KEY_OF_NO_TENSOR,
                "transport_options": self._fused_request(names, **(fused or {})),
            }
        return self.call("RecvTensor", step_id=step, request_id=request_id, **fields, **kwargs)

    def cut_off(self, count: int) -> list[str]:
        """Sends only the first bytes of fused requests; the codes of the errors."""
        import grpc
        from google.protobuf import any_pb2

        whole = any_pb2.Any.FromString(self._fused_request(["a", "b"]))
        codes = []
        for length in range(3, count + 3):  # (Two bytes are a whole request, for no tensor.)
            options = any_pb2.Any(type_url=whole.type_url, value=whole.value[:length])
            try:
                self.call(
                    "RecvTensor",
                    step_id=1,
                    request_id=next(self._request_ids),
                    rendezvous_key=KEY_OF_NO_TENSOR,
                    transport_options=options.SerializeToString(),
                ).result()
                codes.append("OK")
            except grpc.RpcError as error:
                codes.append(error.code().name)
        return codes

    def receive_parts(
        self,
        step: int,
        names: Sequence[str],
        request: int,
        timeout: float = TIMEOUT_S,
        **fields: Any,
    ) -> Any:
        """Starts a request by parts.

        Args:
          step: the step's id.
          names: what is asked for by name.
          request: the request's id.
          timeout: of the call, seconds.
          **fields: further ones of the FuseRecvTensorRequest.
        """
        options = self._fused_request(names, TYPE_URL_OF_PARTS, **fields)
        return self.call(
            "RecvTensor",
            timeout,
            step_id=step,
            request_id=request,
            rendezvous_key=KEY_OF_NO_TENSOR,
            transport_options=options,
        )

    def _fused_request(
        self, names: Sequence[str], type_url: str = TYPE_URL, **fields: Any
    ) -> bytes:
        from google.protobuf import any_pb2

        from tf_fuse.v1 import fuse_recv_pb2

        request = fuse_recv_pb2.FuseRecvTensorRequest(
            frame_version=3,
            send_device=self.device,
            send_device_incarnation=self.incarnation,
            tensor_names=[f"edge_{name}" for name in names],
            **{"recv_device": RECEIVER, **fields},
        )
        return any_pb2.Any(type_url=type_url, value=request.SerializeToString()).SerializeToString()


@dataclasses.dataclass(frozen=True)
class Graph:
    """A graph that a `Sender` registered.

    Attributes:
      handle: to run it by.
      openers: by gate, the handle of a graph that opens it.
    """

    handle: str
    openers: dict[str, str]


class Sender(Worker):
    """A task that runs the steps of the module's description."""

    def __init__(self, address: str, has_plugin: bool):
        """Connects.

        Args:
          address: of the task.
          has_plugin: whether it runs "grpc+fuse", and so has counters.
        """
        super().__init__(address)
        self._own_steps = itertools.count(1_000_000)
        self._numbers = itertools.count()
        self._has_plugin = has_plugin

    def graph(self) -> Graph:
        """Registers a graph, with a gate of its own."""
        import tensorflow as tf

        number = next(self._numbers)
        names = ("early", "gated", "failing", "never")
        with tf.Graph().as_default() as graph:
            gates = {name: make_gate(f"{name}_{number}") for name in names[1:]}
            tf.constant(EARLY, name="early")
            with tf.control_dependencies([gates["gated"].dequeue()]):
                tf.constant(GATED, name="gated")
            with tf.control_dependencies([gates["failing"].dequeue()]):
                tf.strings.to_number(tf.constant("no number"), name="failing")
            with tf.control_dependencies([gates["never"].dequeue()]):
                tf.constant(0.0, name="never")
        handle = self.register(graph, {name: name for name in names})
        openers = {}
        for name in ("gated", "failing"):
            with tf.Graph().as_default() as graph:
                make_gate(f"{name}_{number}").enqueue(True)
            openers[name] = self.register(graph, {})
        return Graph(handle, openers)

    def open_gate(self, graph: Graph, name: str = "gated") -> None:
        """Lets "gated" be sent, or "failing" fail."""
        step = next(self._own_steps)
        self.run(graph.openers[name], step).result()
        self.cleanup(step)

    def ask(self, question: int) -> bytes:
        """The answer to a `Question`."""
        options = self._fused_request([], question=question)
        answer = self.call("RecvTensor", rendezvous_key=KEY_OF_NO_TENSOR, transport_options=options)
        content = tensor_proto(answer.result()).tensor_content
        # A frame of one slot (cc/frame/frame.h): its record says where the bytes are.
        offset, size = struct.unpack_from("<QQ", content, _FRAME_HEADER_BYTES + 8)
        return bytes(content[offset : offset + size])

    def counters(self) -> dict[str, Any]:
        """The task's `tf_fuse.metrics()`; of a stock task {}."""
        if not self._has_plugin:
            return {}
        from tf_fuse.v1 import fuse_recv_pb2

        counted: dict[str, Any] = json.loads(self.ask(fuse_recv_pb2.QUESTION_METRICS))
        return counted


class SenderTask:
    """A cluster of workers whose first one is a `Sender`'s task; the test is the receiver.

    Attributes:
      sender: its client.
      steps: numbers of steps that were not used yet.
      requests: numbers of requests that were not.
    """

    AT_REST: Mapping[str, int] = dict.fromkeys(
        ("pending_requests", "pending_bytes", "partial_tensors"), 0
    )

    def __init__(self, **cluster: Any):
        """Starts it; `cluster` is of `LocalCluster`."""
        from examples import standalone

        self._cluster = standalone.cluster_package().LocalCluster(ps=0, **cluster)
        self.sender = Sender(self._cluster.cluster_spec["worker"][0], True)
        self.steps = itertools.count(1)
        self.requests = itertools.count(500)
        self._first_step()

    def _first_step(self) -> None:
        """Runs a step, so that the tests' first one is not late by what a new process has to do."""
        step = next(self.steps)
        running = self.sender.run(self.sender.graph().handle, step)
        self.sender.receive(step, ["early"]).result()
        running.cancel()
        self.sender.cleanup(step)

    def gauges(self) -> dict[str, int]:
        """What requests have left, as in `AT_REST`."""
        counters = self.sender.counters()
        return {name: counters[name] for name in self.AT_REST}

    def at_rest(self) -> dict[str, int]:
        """The gauges, once they are 0, or after a while."""
        return self.gauges_once(lambda gauges: gauges == self.AT_REST)

    def gauges_once(self, settled: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """The gauges, once they are so, or after a while: an answer can be here before they are."""
        return coordinator.settled(self.gauges, settled)

    def close(self) -> None:
        """Ends all calls and the cluster."""
        self.sender.close()
        self._cluster.close()


def make_gate(name: str) -> Any:
    """The queue of a gate, in the present graph: what dequeues waits until somebody enqueues."""
    import tensorflow as tf

    # A task keeps the kernels of a session's stateful nodes by their names, whatever the graph.
    name = f"gate_{name}"
    return tf.queue.FIFOQueue(100, [tf.bool], shapes=[[]], shared_name=name, name=name)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def tensor_proto(response: Any) -> Any:
    """The TensorProto in a RecvTensorResponse."""
    from tensorflow.core.framework import tensor_pb2

    return tensor_pb2.TensorProto.FromString(response.tensor)


def holds(future: Any, value: float) -> bool:
    """Whether the answer of a receive, fused or not, has a float32 of this value."""
    content = tensor_proto(future.result()).tensor_content
    data = struct.pack("<f", value)
    # Payloads of a frame begin at multiples of 64 bytes; a single tensor is its own content.
    return any(content[i : i + 4] == data for i in range(0, len(content), 64))


def error_of(future: Any) -> tuple[str, str]:
    """The code and the text of a call that fails."""
    error = future.exception()
    return error.code().name, error.details()
