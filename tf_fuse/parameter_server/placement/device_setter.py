# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Place the variables of a graph that `tf.compat.v1.train.replica_device_setter` builds."""

from __future__ import annotations

import re
from typing import Any

from tf_fuse._tensorflow.graphs.functions import colocation
from tf_fuse.parameter_server import arguments
from tf_fuse.parameter_server.costs import Costs, VariableSpec
from tf_fuse.parameter_server.placement.placer import Placer
from tf_fuse.parameter_server.placement.planned_places import PlacementPlan

# How `tf.compat.v1.get_variable` names the pieces of a variable.
_PIECE = re.compile(r"(?P<whole>.+)/part_\d+")


def whole_of(name: str) -> str:
    """Return the name of the variable that one of a graph is a piece of; "" for a whole one."""
    piece = _PIECE.fullmatch(name)
    return piece["whole"] if piece else ""


class PsStrategy:
    """Choose a parameter server for each variable, hash table and accumulator of one graph.

        strategy = tf_fuse.parameter_server.PsStrategy(servers=2)
        setter = tf.compat.v1.train.replica_device_setter(cluster=cluster, ps_strategy=strategy)
        with tf.compat.v1.device(setter):
            ...

    Each worker builds its own graph, with a strategy of its own: the same program gives the same
    places. TensorFlow puts slots beside their variables, whatever device is set; before that they
    are expected, as `costs` or the plan say. A device scope comes first.

    Attributes:
      placement: the servers and what they have.
    """

    def __init__(self, servers: int, costs: Costs | None = None, plan: PlacementPlan | None = None):
        """Start with empty servers.

        Args:
          servers: how many tasks the job "ps" has, at least 1.
          costs: the figures by which it decides; None for those of `Costs()`.
          plan: of `tf_fuse.parameter_server.plan`; None to choose for each variable as it is made.

        Raises:
          TypeError: an argument is of another type.
          ValueError: there is no server, or the plan is for another number of them.
        """
        if costs is not None:
            arguments.instance("costs", costs, Costs, ", or None")
        if plan is not None:
            arguments.instance("plan", plan, PlacementPlan, ", or None")
        self.placement = Placer(arguments.servers(servers), costs or Costs())
        if plan is not None:
            self.placement.add_plan(plan.copy())
        # The name of the variable that each colocated operation is beside.
        self._owners: dict[str, str] = {}

    def __call__(self, op: Any) -> int:
        """Choose the server of an operation.

        Args:
          op: a `tf.Operation` or a NodeDef.

        Returns:
          The number of the task.

        Raises:
          ValueError: a device scope names a task that does not exist.
        """
        from tensorflow.core.framework import node_def_pb2
        from tensorflow.python.framework import dtypes

        node = op if isinstance(op, node_def_pb2.NodeDef) else op.node_def
        shape: tuple[int, ...] | None = None
        dtype = "resource"
        if "shape" in node.attr and "dtype" in node.attr:
            dims = node.attr["shape"].shape
            dtype = dtypes.as_dtype(node.attr["dtype"].type).base_dtype.name
            if not dims.unknown_rank and all(dim.size >= 0 for dim in dims.dim):
                shape = tuple(dim.size for dim in dims.dim)
        variable = VariableSpec(op.name, shape or (), dtype)
        owner = _beside(op)
        if owner is not None:
            return self._add_beside(owner, op.name, variable)
        explicit = _task(op.device or node.device, self.placement.servers, op.name)
        placed = self.placement.place(
            variable, explicit, whole_of(op.name), is_sized=shape is not None
        )
        self.placement.made(placed, placed.variable, op.name)
        return placed.server

    def _add_beside(self, other: Any, name: str, variable: VariableSpec) -> int:
        """Count what TensorFlow will put beside another operation, and return its server."""
        spec = _spec(other.device)
        if spec.job == "ps":
            other_name = other.name.partition(":")[0]
            owner = self._owners.get(other_name, other_name)
            self._owners[name] = owner
            self.placement.add_slot(owner, variable.bytes)
        # (TensorFlow does not use it.)
        return int(spec.task or 0)


def _beside(op: Any) -> Any:
    """Return the operation beside which TensorFlow will put one, after asking for its device."""
    graph = getattr(op, "graph", None)
    if graph is None:
        return None
    return next((one for one in colocation(graph) if one.device), None)


def _spec(device: str) -> Any:
    from tensorflow.python.framework import device as device_module

    return device_module.DeviceSpec.from_string(device or "")


def _task(device: str, servers: int, name: str) -> int | None:
    spec = _spec(device)
    if spec.task is None:
        return None
    if spec.task >= servers:
        raise ValueError(
            f"{name!r} is to be on task {spec.task} of the parameter servers, but there are "
            f"{servers}, from task 0 on: change the device scope around it"
        )
    return int(spec.task)
