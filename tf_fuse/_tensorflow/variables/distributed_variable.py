# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read and watch `DistributedVariable`: one variable per replica of a strategy.

At import, because a handle has no other way to its variable where a function made the variable, as
optimizers make slots, and such functions run before an option is set, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_IMPORT, ON_OBJECTS, Member, Stored, Takes

_CLASS = "tensorflow.python.distribute.values:DistributedVariable"
_FEATURES = (feature_names.WEIGHT_UPDATES,)
_INIT = Member(
    _CLASS,
    "__init__",
    Takes("self", "strategy", "values", "aggregation", "var_policy"),
    "Each variable notes itself on the handles of its replicas; TensorFlow does so too, but not "
    "where a function makes the variable.",
    _FEATURES,
    AT_IMPORT,
)
MEMBERS = (
    _INIT,
    Member(
        "tensorflow.python.distribute.values:DistributedValues",
        "_values",
        Stored(),
        "holds the variables of the replicas",
        _FEATURES,
    ),
    Member(
        _CLASS,
        "_distribute_strategy",
        Stored(),
        "is the strategy that made the variable",
        _FEATURES,
    ),
    Member(
        _CLASS,
        "_distributed_container",
        Stored(),
        "On a handle, it refers to the variable of the strategy.",
        _FEATURES,
        ON_OBJECTS,
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib:StrategyBase",
        "_should_use_with_coordinator",
        Stored(),
        "to leave variables of parameter servers alone",
        _FEATURES,
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib:StrategyExtendedV1",
        "_in_multi_worker_mode",
        Takes("self"),
        "to tell a strategy over several processes from one in a process",
        _FEATURES,
    ),
)


def call_with_each(see: Callable[[Any], None]) -> None:
    """Call a function with each `DistributedVariable` that is made, once per process."""
    monkey_patch.extend_init(_INIT, see)


def replicas(container: Any) -> Sequence[Any]:
    """Return the variables of a strategy's variable, one of each replica."""
    values: Sequence[Any] = container._values
    return values


def container_of(tensor: Any) -> Any:
    """Return what a handle or a replica's variable notes as the variable of a strategy; or None."""
    noted = getattr(tensor, "_distributed_container", None)
    return None if noted is None else noted()


def note_container(handle: Any, container: Any) -> None:
    """Note on a handle which variable of a strategy it belongs to, unless TensorFlow did."""
    if not hasattr(handle, "_distributed_container"):
        handle._distributed_container = weakref.ref(container)


def strategy_of(container: Any) -> Any:
    """Return the strategy of a variable; None for one without."""
    return getattr(container, "_distribute_strategy", None)


def is_on_servers(strategy: Any) -> bool:
    """Return whether a strategy has parameter servers."""
    return bool(getattr(strategy, "_should_use_with_coordinator", False))


def is_of_processes(extended: Any) -> bool:
    """Return whether a strategy, given its `extended`, has replicas in several processes."""
    return bool(extended._in_multi_worker_mode())
