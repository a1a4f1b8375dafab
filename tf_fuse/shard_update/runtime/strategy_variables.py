# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the variable of a strategy that a handle belongs to.

A strategy's variable has one of each replica, and TensorFlow notes on their handles what they
belong to. But where a function makes them, as optimizers do that make their slots in the first
step, it notes that on the variables; and who has the handle in a call has no way to the variable,
where an operation such as `ResourceApplyAdam` gets the handle alone.
"""

from __future__ import annotations

from typing import Any

from tf_fuse._tensorflow.variables import distributed_variable, resource_variable


def watch_containers() -> None:
    """Make each variable of a strategy note itself on its handles; once per process."""
    from tensorflow.python.framework import ops

    def see(container: Any) -> None:
        for variable in distributed_variable.replicas(container):
            handle = resource_variable.own_handle(variable)
            if isinstance(handle, ops.EagerTensor):
                distributed_variable.note_container(handle, container)

    distributed_variable.call_with_each(see)


def container_of(tensor: Any, graph: Any) -> Any | None:
    """Return the variable of a strategy, equal on all replicas, that a tensor is a handle of.

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
    found = distributed_variable.container_of(tensor)
    if found is None:  # One that a function made before tf_fuse was imported.
        for variable in graph.variables:
            if resource_variable.own_handle(variable) is tensor:
                found = distributed_variable.container_of(variable)
    return found if type(found) is values.MirroredVariable else None


def is_of_one_replica(tensor: Any) -> bool:
    """Return whether a tensor is the handle of a variable of a strategy with one replica.

    Variables on parameter servers have one replica as a rule, and must not be sharded.
    """
    strategy = distributed_variable.strategy_of(distributed_variable.container_of(tensor))
    if strategy is None or distributed_variable.is_on_servers(strategy):
        return False
    return bool(strategy.num_replicas_in_sync == 1)
