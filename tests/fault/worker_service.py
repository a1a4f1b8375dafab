# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's WorkerService as any peer may call it, with messages made by hand.

TensorFlow ships no Python for tensorflow/core/protobuf/worker.proto; what is used of it is declared
here.
"""

from __future__ import annotations

import itertools
from typing import Any

PATH = "/tensorflow.WorkerService/"
TYPE_URL = "type.googleapis.com/tf_fuse.v1.FuseRecvTensorRequest"
KEY_OF_NO_TENSOR = "tf_fuse.v1.FuseRecvTensor"
TYPE_URL_OF_PARTS = "type.googleapis.com/tf_fuse.v1.parts/tf_fuse.v1.FuseRecvTensorRequest"

# Field, number, type. Messages within messages are left as bytes: the encoding is the same.
_MESSAGES = {
    "GetStatusRequest": [],
    "GetStatusResponse": [("device_attributes", 1, "repeated bytes")],
    "RecvTensorRequest": [
        ("step_id", 1, "int64"),
        ("rendezvous_key", 2, "string"),
        ("transport_options", 6, "bytes"),
        ("request_id", 7, "int64"),
    ],
    "RecvTensorResponse": [
        ("tensor", 1, "bytes"),
        ("is_dead", 2, "bool"),
        ("require_ack", 5, "bool"),
    ],
    "RecvBufRequest": [
        ("step_id", 1, "int64"),
        ("buf_rendezvous_key", 2, "string"),
        ("num_bytes", 3, "int64"),
        ("src_device", 8, "string"),
        ("src_incarnation", 11, "uint64"),
    ],
    "RecvBufResponse": [],
    "CleanupGraphRequest": [("step_id", 1, "int64")],
    "CleanupGraphResponse": [],
    "RegisterGraphRequest": [("session_handle", 1, "string"), ("graph_def", 2, "bytes")],
    "RegisterGraphResponse": [("graph_handle", 1, "string")],
    "RunGraphRequest": [
        ("graph_handle", 1, "string"),
        ("step_id", 2, "int64"),
        ("exec_opts", 5, "bytes"),
    ],
    "RunGraphResponse": [],
}


def messages() -> dict[str, Any]:
    """Returns the classes of the messages above, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tf_fuse_test_worker.proto", package="tf_fuse_test", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, text in fields:
            label = kind.LABEL_REPEATED if "repeated" in text else kind.LABEL_OPTIONAL
            field_type = getattr(kind, f"TYPE_{text.split()[-1].upper()}")
            message.field.add(name=field, number=number, type=field_type, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"tf_fuse_test.{message.name}")
        )
        for message in file.message_type
    }


class Peer:
    """A client of one task that is not part of its cluster.

    Attributes:
      channel: a `grpc.Channel`.
      task: the task's name, "/job:ps/replica:0/task:0".
      incarnation: of the task's CPU.
    """

    def __init__(self, address: str, task: str):
        """Connects, and asks for the task's devices."""
        import grpc
        from tensorflow.core.framework import device_attributes_pb2

        self.task = task
        self.channel = grpc.insecure_channel(address, [("grpc.max_send_message_length", 1 << 30)])
        self._messages = messages()
        self._request_ids = itertools.count(1000)
        answer = self.method("GetStatus")(self._messages["GetStatusRequest"]())
        devices = [
            device_attributes_pb2.DeviceAttributes.FromString(data)
            for data in self._messages["GetStatusResponse"].FromString(answer).device_attributes
        ]
        self.incarnation = next(x.incarnation for x in devices if x.device_type == "CPU")

    def method(self, name: str) -> Any:
        """A method of the service; answers are bytes."""
        return self.channel.unary_unary(
            PATH + name, request_serializer=lambda message: message.SerializeToString()
        )

    def fused_request(self, names: list[str], receiver: str, **fields: Any) -> bytes:
        """A serialized FuseRecvTensorRequest for tensors of this task.

        Args:
          names: of the tensors.
          receiver: the receiving device.
          **fields: what to set otherwise.
        """
        from tf_fuse.v1 import fuse_recv_pb2

        values = {
            "frame_version": 3,
            "send_device": f"{self.task}/device:CPU:0",
            "send_device_incarnation": self.incarnation,
            "recv_device": receiver,
            "tensor_names": names,
        } | fields
        return fuse_recv_pb2.FuseRecvTensorRequest(**values).SerializeToString()

    def recv_tensor(
        self,
        value: bytes,
        step: int,
        type_url: str = TYPE_URL,
        request_id: int | None = None,
        key: str = "no key",
    ) -> Any:
        """A RecvTensorRequest that carries `value`; with a request id of its own by default."""
        from google.protobuf import any_pb2

        return self._messages["RecvTensorRequest"](
            step_id=step,
            rendezvous_key=key,
            transport_options=any_pb2.Any(type_url=type_url, value=value).SerializeToString(),
            request_id=next(self._request_ids) if request_id is None else request_id,
        )

    def run_graph(self, graph: Any, steps: list[int]) -> None:
        """Registers a GraphDef and runs it to its end once for each step id."""
        register = self._messages["RegisterGraphRequest"](graph_def=graph.SerializeToString())
        answer = self.method("RegisterGraph")(register)
        handle = self._messages["RegisterGraphResponse"].FromString(answer).graph_handle
        for step in steps:
            self.method("RunGraph")(
                self._messages["RunGraphRequest"](graph_handle=handle, step_id=step)
            )

    def clean_up(self, step: int) -> None:
        """Ends a step."""
        self.method("CleanupGraph")(self._messages["CleanupGraphRequest"](step_id=step))
