# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which variable of a strategy a handle belongs to.

A strategy's variable has one of each replica, and TensorFlow notes on their handles what they
belong to. But where a function makes them, as optimizers do that make their slots in the first
step, it notes that on the variables; and who has the handle in a call has no way to the variable,
where an operation such as `ResourceApplyAdam` gets the handle alone.
"""

from __future__ import annotations

import weakref
from typing import Any

from tf_fuse.shard_update.inits import tell_of_each

_MARK = "_tf_fuse_notes_handles"


def watch_containers() -> None:
    """Has each variable of a strategy note itself on its handles; once per process."""
    from tensorflow.python.distribute import values
    from tensorflow.python.framework import ops

    def tell(container: Any) -> None:
        for variable in container._values:
            handle = getattr(variable, "__dict__", {}).get("_handle")
            is_noted = hasattr(handle, "_distributed_container")
            if isinstance(handle, ops.EagerTensor) and not is_noted:
                handle._distributed_container = weakref.ref(container)

    tell_of_each(values.DistributedVariable, _MARK, tell)


def container_of(tensor: Any, graph: Any) -> Any | None:
    """The variable of a strategy, equal on all replicas, that a tensor is a handle of.

    Args:
      tensor: that a function gets.
      graph: of the function.

    Returns:
      The variable; None for any other tensor.
    """
    from tensorflow.python.distribute import values
    from tensorflow.python.framework import dtypes

    if getattr(tensor, "dtype", None) != dtypes.resource:
        return None
    container = getattr(tensor, "_distributed_container", None)
    if container is None:  # One that a function made before tf_fuse was imported.
        for variable in graph.variables:
            if variable.__dict__.get("_handle") is tensor:
                container = getattr(variable, "_distributed_container", None)
    found = None if container is None else container()
    return found if type(found) is values.MirroredVariable else None


def is_of_one_replica(tensor: Any) -> bool:
    """Whether a tensor is the handle of a variable of a strategy with one replica.

    Variables on parameter servers have one replica as a rule, and are none to be cut.
    """
    container = getattr(tensor, "_distributed_container", None)
    found = None if container is None else container()
    strategy = getattr(found, "_distribute_strategy", None)
    if strategy is None or getattr(strategy, "_should_use_with_coordinator", False):
        return False
    return bool(strategy.num_replicas_in_sync == 1)
