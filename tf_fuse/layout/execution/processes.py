# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Join the processes of a job, so that a plan runs in all of them.

Each process starts a server as TF_CONFIG says. With the protocol `grpc+fuse`, collectives take the
plugin's data paths. TensorFlow's coordination service, in the first process, lets a process find
out that another one does not come.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context

from tf_fuse.cluster.serve import FUSED_PROTOCOL, ConfigError, parse_tf_config
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh

# Jobs whose tasks run the program, in the order of the processes.
_JOBS: Final[tuple[str, ...]] = ("chief", "worker")


@dataclasses.dataclass(frozen=True)
class _Process:
    """This process among those of its job.

    Attributes:
      tasks: names of all tasks, as TensorFlow begins those of their devices.
      number: of this process.
      devices: of each process.
      plugin: whether the server is the plugin's.
    """

    tasks: tuple[str, ...]
    number: int
    devices: int
    plugin: bool


_joined: list[_Process] = []


def connect(mesh: Mesh) -> Devices:
    """Start this process's server, and return the devices of a mesh, of all processes.

    Call it in each process before TensorFlow uses any device. The processes have as many logical
    CPUs each, next to each other in the mesh. Later calls give the devices of other meshes of that
    many.

    Args:
      mesh: that all processes form.

    Raises:
      LayoutError: TF_CONFIG is missing or wrong; the mesh cannot be divided among its processes; or
        TensorFlow has used devices already.
    """
    if not _joined:
        _joined.append(_join(mesh))
    process = _joined[0]
    processes = len(process.tasks)
    if mesh.size != processes * process.devices:
        raise LayoutError(
            f"mesh {str(mesh)!r} has {mesh.size} devices, and {processes} processes have "
            f"{process.devices} each; give a mesh of {processes * process.devices}, or first the "
            "largest one"
        )
    first = process.number * process.devices
    task = process.tasks[process.number]
    names = {first + i: f"{task}/device:CPU:{i}" for i in range(process.devices)}
    return Devices(mesh, names, processes=processes, plugin=process.plugin)


def _join(mesh: Mesh) -> _Process:
    given = os.environ.get("TF_CONFIG")
    try:
        config = parse_tf_config(given)
    except ConfigError as error:
        raise LayoutError(f"connect starts a server as TF_CONFIG says: {error}") from error
    if config.job not in _JOBS:
        raise LayoutError(
            f"this process is task {config.name!r} of TF_CONFIG, and the processes of a plan are "
            f"tasks of {' and '.join(map(repr, _JOBS))}; give it another task"
        )
    named = isinstance(given, str) and json.loads(given).get("rpc_layer")
    protocol = config.protocol if named else FUSED_PROTOCOL
    jobs = {job: config.cluster[job] for job in _JOBS if job in config.cluster}
    tasks = {
        (job, index): f"/job:{job}/replica:0/task:{index}"
        for job, addresses in jobs.items()
        for index in sorted(addresses)
    }
    if mesh.size % len(tasks):
        raise LayoutError(
            f"mesh {str(mesh)!r} has {mesh.size} devices, and TF_CONFIG has {len(tasks)} "
            "processes, which have as many each; give a mesh whose size is a multiple of that"
        )
    own = mesh.size // len(tasks)
    try:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * own,
        )
    except RuntimeError as error:
        raise LayoutError(
            f"TensorFlow has used its devices already ({error}); call connect before"
        ) from error
    if len(tasks) > 1:
        _start(jobs, config.job, config.index, protocol, next(iter(tasks.values())))
    found = tuple(tasks.values())
    number = list(tasks).index((config.job, config.index))
    return _Process(found, number, own, protocol == FUSED_PROTOCOL)


def _start(
    jobs: Mapping[str, Mapping[int, str]], job: str, index: int, protocol: str, leader: str
) -> None:
    """Start this task's server, for eager calls and functions."""
    own: Any = context.context()
    own.configure_collective_ops(collective_leader=leader)
    own.configure_coordination_service(service_type="standalone", service_leader=leader)
    server = tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec(jobs).as_cluster_def(),
        default_session_config=context.get_config(),
        job_name=job,
        task_index=index,
        protocol=protocol,
    )
    # As DTensor has them: several connections, and no limit on a tensor that is received.
    server.default_session_config.rpc_options.num_channels_per_target = 4
    server.default_session_config.experimental.recv_buf_max_chunk = -1
    own.enable_collective_ops(server)
    context.ensure_initialized()
