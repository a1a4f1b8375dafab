# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find where the nodes of a function run if its variables are on other tasks than its caller.

Under `ParameterServerStrategy`, a worker calls a function, and each server runs the nodes of its
own variables. So a cluster can become one operation if all of it is on one server and that server
has loaded the plugin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tf_fuse._tensorflow.eager.context_servers import collective_server_def, server_def
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import UnfusedAssignment
from tf_fuse.fuse_update.analysis.rows import GATHERS, SCATTERS, variable_of
from tf_fuse.monitoring import tasks

_log = logging.getLogger("tf_fuse")

# How long a server may take to answer whether it has the plugin.
_TIMEOUT_S = 10.0
# The device of a node that names none: it runs on the task that calls the function.
CALLER = ""


def has_other_tasks(context: Any) -> bool:
    """Return whether variables may be on other tasks, as parameter servers are."""
    return server_def(context) is not None and collective_server_def(context) is None


class Servers:
    """Remembers which tasks can run our operations.

    Thread-safe without a lock: two threads that ask the same task get the same answer.
    """

    def __init__(self, ask: Callable[[str, str], str], own: Callable[[], str]):
        """Start without answers.

        Args:
          ask: returns why a task cannot run our operations, given its name and device, or "".
          own: returns the name of this task; updates of its own variables are not fused.
        """
        self._ask, self._own = ask, own
        self._problems: dict[str, str] = {}

    def problem(self, device: str) -> str:
        """Return why the task of a CPU device cannot run our operations, or ""."""
        task = device.rpartition("/device:")[0]
        if task == self._own().partition("/device:")[0]:
            return "it is the one that calls the function"
        if task not in self._problems:
            problem = self._problems[task] = self._ask(task, device)
            if problem:
                _log.warning(
                    "updates of variables on %s stay as they are, since it cannot do them "
                    "in one operation: %s", task, problem,
                )  # fmt: skip
        return self._problems[task]

    def is_without(self, device: str) -> bool:
        """Return whether the task of a CPU device answered that it cannot run our operations."""
        return bool(self._problems.get(device.rpartition("/device:")[0]))


class ArgumentDevices:
    """The devices of one function's arguments, and so of its nodes.

    It is callable as a `CanFuseOn`.
    """

    def __init__(self, servers: Servers, arguments: Mapping[str, str]):
        """Store the devices of the arguments.

        Args:
          servers: the tasks of the job.
          arguments: the full name of each argument's device, where it is known.
        """
        self._servers, self._arguments = servers, dict(arguments)

    def __call__(self, device: str, variable: str | None) -> bool:
        """Return whether an assignment on a device can be part of a fused operation there."""
        return not self._problem(device, variable)

    def _problem(self, device: str, variable: str | None) -> str:
        place = self._arguments.get(variable or "", "")
        if not is_one_cpu(place):
            return "it is not known on which server's CPU the variable is"
        if device != place and not _may_be_on(device, place):
            return f"the variable is on {place}, but not who assigns it"
        return self._servers.problem(place)

    def explain(self, left: UnfusedAssignment) -> UnfusedAssignment:
        """Replace the reason of an assignment by `no_plugin` if its server lacks the plugin."""
        place = left.detail
        if left.reason == "device" and is_one_cpu(place) and self._servers.is_without(place):
            return replace(left, reason="no_plugin", detail=self._servers.problem(place))
        return left

    def of_node(self, view: GraphView, node: Any) -> str:
        """Return the device that a node runs on, or `CALLER` if it runs on the calling task.

        Equal answers mean the same device.
        """
        device = str(node.device)
        if is_one_cpu(device):
            return device
        if node.op in READS | ASSIGNS:
            return self._arguments.get(str(view.variable_of(node)), CALLER)
        if node.op in SCATTERS | GATHERS:
            return self._arguments.get(variable_of(view, node), CALLER)
        if "/job:" in device:
            return device
        if not device and node.op == "Const":
            # (TensorFlow places a constant with one consumer on the consumer's device.)
            uses = view.uses(f"{node.name}:output:0")
            user = view.nodes[uses[0].node] if len(uses) == 1 else None
            if user is not None and user.op != "Const":
                return self.of_node(view, user)
        return CALLER

    def of_arguments(self, view: GraphView, node: Any, names: list[str]) -> dict[str, str]:
        """Return the devices of the arguments of a function that a node calls.

        Args:
          view: of the function that the node is in.
          node: the calling node.
          names: of the arguments.
        """
        return view.of_arguments(node, names, self._arguments)

    def inside(self, view: GraphView, node: Any, names: list[str]) -> ArgumentDevices:
        """Return the devices inside a function that a node calls."""
        return ArgumentDevices(self._servers, self.of_arguments(view, node, names))


def _may_be_on(device: str, place: str) -> bool:
    """Return whether a partial device name matches a full one."""
    return all(part in place.split("/") for part in device.split("/") if part)


def is_one_cpu(device: str) -> bool:
    """Return whether a name is the full name of one CPU device of one task."""
    return device.startswith("/job:") and "/task:" in device and "/device:CPU:" in device


def ask_task(task: str, device: str) -> str:
    """Ask a task whether it has our operations; return why it does not answer, or ""."""
    from tf_fuse.v1 import fuse_recv_pb2

    answer = tasks.ask_task(task, device, fuse_recv_pb2.QUESTION_METRICS, _TIMEOUT_S)
    return str(answer) if isinstance(answer, tasks.TaskError) else ""
