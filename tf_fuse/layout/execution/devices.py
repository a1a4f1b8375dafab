# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the devices of a mesh, and which of them belong to this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of a mesh.

    Attributes:
      mesh: whose they are.
      names: of this process's devices, as TensorFlow has them, by their numbers in the mesh.
      mesh_on_dtensor: the `dtensor.Mesh` that they were taken from; None if from none.
      processes: number of those that TensorFlow's coordination service knows.
      plugin: whether all processes have servers of the protocol `grpc+fuse`.
    """

    mesh: Mesh
    names: dict[int, str]
    mesh_on_dtensor: Any = None
    processes: int = 1
    plugin: bool = False

    @property
    def local(self) -> tuple[int, ...]:
        """Numbers of this process's devices, ascending."""
        return tuple(self.names)

    @property
    def first(self) -> int:
        """The first one of this process."""
        return self.local[0]

    @property
    def distributed(self) -> bool:
        """Whether some are another process's."""
        return len(self.names) < self.mesh.size


def devices_of(mesh: Mesh, given: Any = None) -> Devices:
    """Return the devices of a mesh.

    Args:
      mesh: that they form.
      given: names of local devices, as "CPU:0", in the mesh's order; or a `dtensor.Mesh` with the
        same axes in the same order, for several processes too; or what `connect` returned. None
        for the first logical CPUs of this process.

    Raises:
      LayoutError: there are not as many, or the other mesh has other axes.
    """
    if given is None:
        given = [f"CPU:{i}" for i in range(mesh.size)]
    if isinstance(given, Devices):
        if given.mesh != mesh:
            raise LayoutError(
                f"the plan is for mesh {str(mesh)!r}, but the devices were connected for "
                f"{str(given.mesh)!r}; call connect with the plan's mesh, also a second time"
            )
        return given
    if hasattr(given, "dim_names"):
        return _of_dtensor(mesh, given)
    return _named(mesh, given)


def _named(mesh: Mesh, given: Sequence[str]) -> Devices:
    known = {one.name for one in tf.config.list_logical_devices()}
    short = {name.removeprefix("/device:") for name in known}
    names = {}
    for number, name in enumerate(given):
        full = tf.DeviceSpec.from_string(name if name.startswith("/") else f"/device:{name}")
        kind = f"{full.device_type}:{full.device_index}"
        if kind not in short:
            raise LayoutError(
                f"there is no device {name!r} in this process; there are: "
                f"{', '.join(sorted(short))}; make logical devices before TensorFlow uses any, by "
                "tf.config.set_logical_device_configuration"
            )
        names[number] = f"/device:{kind}"
    if len(names) != mesh.size:
        raise LayoutError(
            f"mesh {str(mesh)!r} has {mesh.size} devices, got {len(names)}; name each once"
        )
    if len(set(names.values())) != mesh.size:
        raise LayoutError(f"a device is named twice in {list(given)}; name each once")
    return Devices(mesh, names)


def _of_dtensor(mesh: Mesh, given: Any) -> Devices:
    theirs = tuple((one.name, one.size) for one in map(given.__getitem__, given.dim_names))
    if theirs != mesh.dims:
        raise LayoutError(
            f"the plan is for mesh {str(mesh)!r}, but the devices' mesh is "
            f"{';'.join(f'{name}:{size}' for name, size in theirs)!r}; make both from one"
        )
    places = {int(one): i for i, one in enumerate(given.global_device_ids().flatten())}
    local = zip(given.local_device_ids(), given.local_devices(), strict=True)
    names = {places[int(number)]: name for number, name in local}
    from tensorflow.dtensor.python import config

    own = {number: names[number] for number in sorted(names)}
    return Devices(mesh, own, given, config.num_clients())
