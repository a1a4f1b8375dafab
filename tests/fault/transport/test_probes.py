# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks of a graph are asked whether they run the plugin, all at once.

Between the tasks stand proxies, which hold the questions until each of them has one. A worker that
asked one task after the other would never get there: each question would be given up.
"""

import concurrent.futures
import contextlib
import json
import sys
import threading

import grpc
import pytest

from examples import standalone
from tests.fault import coordinator, worker_service

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_SERVERS = 3
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class _Questions:
    """What proxies hold."""

    def __init__(self):
        self._changed = threading.Condition()
        self._held = {}
        self._met = False
        self.most = 0  # tasks that were asked at the same time

    def hold(self, task, context):
        """Wait until all tasks have been asked, or the one that asks does not wait any more."""
        with self._changed:
            self._held[task] = self._held.get(task, 0) + 1
            self.most = max(self.most, len(self._held))
            self._met = self._met or len(self._held) == _SERVERS
            self._changed.notify_all()
            context.add_callback(self._look)
            self._changed.wait_for(lambda: self._met or not context.is_active())
            self._held[task] -= 1
            if not self._held[task]:
                del self._held[task]

    def _look(self):
        with self._changed:
            self._changed.notify_all()


class _Proxy(grpc.GenericRpcHandler):
    """Passes all calls on to a task, and holds probes."""

    def __init__(self, address, questions):
        from google.protobuf import any_pb2

        from tf_fuse.v1 import fuse_recv_pb2  # here: that takes longer than a question may

        self._any, self._request = any_pb2.Any, fuse_recv_pb2.FuseRecvTensorRequest
        self._messages = worker_service.messages()
        self._channel = grpc.insecure_channel(address, _UNLIMITED)
        self._address = address
        self._questions = questions
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(64), [self], (), _UNLIMITED
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self):
        self._server.stop(None)
        self._channel.close()

    def service(self, details):
        if details.method.endswith("/StreamingEnqueue"):
            pass_on = self._channel.stream_stream(details.method)
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: pass_on(requests)
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._pass_on(details.method, request, context)
        )

    def _pass_on(self, method, request, context):
        if method.endswith("/RecvTensor") and self._is_probe(request):
            self._questions.hold(self._address, context)
        call = self._channel.unary_unary(method).future(request)
        context.add_callback(call.cancel)
        try:
            return call.result()
        except grpc.RpcError as error:
            return context.abort(error.code(), error.details())
        except grpc.FutureCancelledError:
            return context.abort(grpc.StatusCode.CANCELLED, "the caller is gone")

    def _is_probe(self, data):
        request = self._messages["RecvTensorRequest"].FromString(data)
        if request.rendezvous_key != worker_service.KEY_OF_NO_TENSOR:
            return False
        options = self._any.FromString(request.transport_options)
        asked = self._request.FromString(options.value)
        names = {field.name for field, _ in asked.ListFields()}
        return names <= {"frame_version"}


def test_the_tasks_of_a_graph_are_asked_at_once():
    questions = _Questions()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            standalone.cluster_package().LocalCluster(1, _SERVERS, "grpc+fuse")
        )
        proxies = [_Proxy(address, questions) for address in cluster.cluster_spec["ps"]]
        for proxy in proxies:
            stack.callback(proxy.close)
        spec = cluster.cluster_spec | {"ps": [proxy.address for proxy in proxies]}
        cases = coordinator.run(__file__, json.dumps(spec))
    assert questions.most == _SERVERS
    assert cases["step"] == {"sum": 66.0, "unreachable": 0}


def _main():
    job = coordinator.Job("on", cluster=json.loads(sys.argv[1]))
    variables = job.variables([float(i) for i in range(12)])

    import tensorflow as tf

    @tf.function
    def trains():
        return coordinator.training_step(variables)

    def step():
        total = float(job.call(trains))
        return {"sum": total, "unreachable": job.total()["skipped:peer_unreachable"]}

    coordinator.finish({"step": step})


if __name__ == "__main__":
    _main()
