# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Change how `ShardedVariable` is saved and restored, and unwrap strategies' variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Stored, Takes
from tf_fuse._tensorflow.variables.resource_variable import own_handle

_CLASS = "tensorflow.python.distribute.sharded_variable:ShardedVariable"
_TRACKABLE = "tensorflow.python.trackable.base:Trackable"
_WHY = "A Keras variable asks its value how it is saved; one in pieces has slices."
_FEATURES = (feature_names.VARIABLES_IN_PIECES,)
MEMBERS = (
    Member(_TRACKABLE, "_serialize_to_tensors", Takes("self"), _WHY, _FEATURES, ON_OBJECTS),
    Member(
        _TRACKABLE,
        "_restore_from_tensors",
        Takes("self", "restored_tensors"),
        _WHY,
        _FEATURES,
        ON_OBJECTS,
    ),
    Member(
        _CLASS,
        "_gather_saveables_for_checkpoint",
        Takes("self"),
        "gives the slices that TensorFlow saves",
        _FEATURES,
    ),
    *(
        Member(
            f"tensorflow.python.distribute.ps_values:{name}",
            "_v",
            Stored(),
            "is the variable inside",
            (*_FEATURES, feature_names.WEIGHT_UPDATES),
        )
        for name in ("AggregatingVariable", "CachingVariable")
    ),
)


def set_slices(sharded: Any, trackable: Any) -> None:
    """Make a `ShardedVariable` save and restore what another object does."""
    sharded._serialize_to_tensors = trackable._serialize_to_tensors
    sharded._restore_from_tensors = trackable._restore_from_tensors


def set_array(sharded: Any, array: Callable[..., Any]) -> None:
    """Make NumPy, and Keras, take a `ShardedVariable` for an array."""
    sharded.__array__ = array


def values_to_save(variable: Any) -> Any:
    """Return what TensorFlow saves of a variable, by name."""
    return variable._serialize_to_tensors()


def restore_values(variable: Any, values: Mapping[str, Any]) -> Any:
    """Restore a variable from what TensorFlow has saved of it; return the operation."""
    return variable._restore_from_tensors(values)


def saveables_of(sharded: Any) -> Any:
    """Return the slices that TensorFlow saves of a `ShardedVariable`."""
    return sharded._gather_saveables_for_checkpoint()


def inside(variable: Any) -> Any:
    """Return TensorFlow's variable in what a strategy has put around it."""
    from tensorflow.python.distribute import ps_values

    while isinstance(variable, (ps_values.CachingVariable, ps_values.AggregatingVariable)):
        variable = variable._v
    return variable


def handle_inside(variable: Any) -> Any:
    """Return the handle of TensorFlow's variable in what a strategy has put around it."""
    return own_handle(inside(variable))
