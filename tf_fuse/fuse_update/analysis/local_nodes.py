# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the nodes that run on a CPU of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_fuse.fuse_update.analysis.fusion_clusters import CanFuseOn


def can_fuse_locally(context: Any, devices: Mapping[str, str]) -> CanFuseOn:
    """Return a predicate: whether a node and its variable are on one CPU of this process.

    Args:
      context: the eager context.
      devices: the device of each variable, by argument.
    """
    from tensorflow.python.framework import device as device_module

    own = device_module.DeviceSpec.from_string(context.host_address_space())
    specs = [device_module.DeviceSpec.from_string(name) for name in context.devices()]
    local = [spec for spec in specs if (spec.job, spec.task) == (own.job, own.task)]

    def can_fuse_on(device: str, variable: str | None) -> bool:
        spec = device_module.DeviceSpec.from_string(device)
        # An assignment runs where its variable is. With several local devices, both must be known.
        if len(local) > 1 and variable is not None:
            whole = own.make_merged_spec(spec).to_string() if device else ""
            if devices.get(variable) != whole:
                return False
        return (
            spec.device_type in (None, "CPU")
            and spec.job in (None, own.job)
            and spec.task in (None, own.task)
            and (len(local) == 1 or bool(device))
        )

    return can_fuse_on
