# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the nodes of a function run whose variables are on other tasks than the one that calls it.

Under `ParameterServerStrategy` a worker runs a function, and each server the nodes that are on it:
an update runs where its variable is. So a cone is one operation there if all of it is on one
server, and that server has the plugin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tf_fuse import _tasks
from tf_fuse.shard_update.cones import Left
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView
from tf_fuse.shard_update.rows import GATHERS, SCATTERS, variable_of

_log = logging.getLogger("tf_fuse")

# Until a server has answered whether it has the plugin.
_TIMEOUT_S = 10.0
# What a node without a device of its own is on: the task that runs the function.
CALLER = ""


def has_other_tasks(context: Any) -> bool:
    """Whether variables may be on other tasks, as parameter servers are."""
    return context._server_def is not None and context._collective_ops_server_def is None


class Servers:
    """The tasks that may run our operations.

    Thread-safe without a lock: an answer that two threads ask for is the same.
    """

    def __init__(self, ask: Callable[[str, str], str], own: Callable[[], str]):
        """Starts without answers.

        Args:
          ask: why a task cannot run our operations, given its name and its device; "" if it can.
          own: returns a name of the task that asks; its own variables stay as they are.
        """
        self._ask, self._own = ask, own
        self._problems: dict[str, str] = {}

    def problem(self, device: str) -> str:
        """Why the task of a CPU cannot run our operations; "" if it can."""
        task = device.rpartition("/device:")[0]
        if task == self._own().partition("/device:")[0]:
            return "it is the one that calls the function"
        if task not in self._problems:
            problem = self._problems[task] = self._ask(task, device)
            if problem:
                _log.warning(
                    "tf_fuse: updates of variables on %s stay as they are, since it cannot do them "
                    "in one operation: %s", task, problem,
                )  # fmt: skip
        return self._problems[task]

    def is_without(self, device: str) -> bool:
        """Whether a CPU is on a task that has said that it cannot run our operations."""
        return bool(self._problems.get(device.rpartition("/device:")[0]))


class Places:
    """Where the arguments of one function are, and so its nodes.

    Called, it tells whether an update can be one operation; see `cones.IsHere`.
    """

    def __init__(self, servers: Servers, arguments: Mapping[str, str]):
        """Takes where the arguments are.

        Args:
          servers: of the cluster.
          arguments: by argument, the full name of its device, if that is known.
        """
        self._servers, self._arguments = servers, dict(arguments)

    def __call__(self, device: str, variable: str | None) -> bool:
        """Whether an assignment on a device can be part of an operation there."""
        return not self._problem(device, variable)

    def _problem(self, device: str, variable: str | None) -> str:
        place = self._arguments.get(variable or "", "")
        if not is_one_cpu(place):
            return "it is not known on which server's CPU the variable is"
        if device != place and not _may_be_on(device, place):
            return f"the variable is on {place}, but not who assigns it"
        return self._servers.problem(place)

    def explain(self, left: Left) -> Left:
        """Says of an assignment that is left for its device whether the plugin is missing there."""
        place = left.detail
        if left.reason == "device" and is_one_cpu(place) and self._servers.is_without(place):
            return replace(left, reason="no_plugin", detail=self._servers.problem(place))
        return left

    def of_node(self, view: GraphView, node: Any) -> str:
        """The device that a node runs on; of all that are on the caller's, `CALLER`.

        Nodes for which two answers are equal are on one device.
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
            # (TensorFlow has a constant for one node with that node.)
            uses = view.uses(f"{node.name}:output:0")
            user = view.nodes[uses[0].node] if len(uses) == 1 else None
            if user is not None and user.op != "Const":
                return self.of_node(view, user)
        return CALLER

    def of_arguments(self, view: GraphView, node: Any, names: list[str]) -> dict[str, str]:
        """Where the arguments of a function are that a node calls.

        Args:
          view: of the function that the node is in.
          node: that calls.
          names: of the arguments.
        """
        tensors = [text for text in node.input if not text.startswith("^")]
        tensors = tensors[len(tensors) - len(names) :]
        found = {}
        for name, tensor in zip(names, tensors, strict=False):
            place = self._arguments.get(view.resource(tensor))
            if place is not None:
                found[name] = place
        return found

    def inside(self, view: GraphView, node: Any, names: list[str]) -> Places:
        """The places in a function that a node calls."""
        return Places(self._servers, self.of_arguments(view, node, names))


def _may_be_on(device: str, place: str) -> bool:
    """Whether a device that is named in part is one of all that it may be."""
    return all(part in place.split("/") for part in device.split("/") if part)


def is_one_cpu(device: str) -> bool:
    """Whether a name is that of one CPU of one task."""
    return device.startswith("/job:") and "/task:" in device and "/device:CPU:" in device


def ask_task(task: str, device: str) -> str:
    """Asks a task whether it has our operations; "" if it has."""
    from tf_fuse.v1 import fuse_recv_pb2

    answer = _tasks.ask_task(task, device, fuse_recv_pb2.QUESTION_METRICS, _TIMEOUT_S)
    return str(answer) if isinstance(answer, _tasks.TaskError) else ""
