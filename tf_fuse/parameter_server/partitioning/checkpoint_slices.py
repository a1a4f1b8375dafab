# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Save partitioned variables as slices of whole ones, which any other partition can load.

A checkpoint stores slices of tensors: pieces are written as slices of the whole, and a program with
other pieces, or none, can read it. TensorFlow does so for its own `ShardedVariable`, but not for
one inside a Keras 3 variable. (`keras_checkpoints.py` saves an optimizer's variables.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorflow.python.trackable import base

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.variables import sharded_variable, trackable_saveable
from tf_fuse.parameter_server.partitioning import gradient_tape

_KEY = base.VARIABLE_VALUE_KEY


class _Pieces(base.Trackable):
    """Variables that are one whole for a checkpoint."""

    def __init__(self, parts: Sequence[Any]):
        """Take the pieces, in order."""
        self._parts = dict(zip(_slices(parts), map(sharded_variable.inside, parts), strict=True))

    def _serialize_to_tensors(self) -> dict[str, Any]:
        values = {
            spec: sharded_variable.values_to_save(part)[_KEY] for spec, part in self._parts.items()
        }
        return {_KEY: values}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> Any:
        from tensorflow.python.ops import control_flow_ops

        values = restored_tensors[_KEY]
        return control_flow_ops.group(
            *(
                sharded_variable.restore_values(part, {_KEY: values[spec]})
                for spec, part in self._parts.items()
            )
        )


def save_by_pieces(sharded: Any) -> None:
    """Make a Keras variable save as its value, a variable in pieces, does.

    Args:
      sharded: a `ShardedVariable`.
    """
    if not features.works(feature_names.VARIABLES_IN_PIECES):
        return
    trackable_saveable.hand_over_slices(lambda one: gradient_tape.in_pieces(one) is not None)
    pieces = _Pieces(sharded.variables)
    # (Keras would save the value in its own way, not in TensorFlow's.)
    sharded_variable.set_slices(sharded, pieces)


def _slices(parts: Sequence[Any]) -> list[str]:
    """Return each piece's slice of the whole, as checkpoints record it."""
    from tensorflow.python.ops import variables

    rows = [int(part.shape[0]) for part in parts]
    rest = [int(size) for size in parts[0].shape[1:]]
    return [
        variables.Variable.SaveSliceInfo(
            full_shape=[sum(rows), *rest],
            var_offset=[sum(rows[:index]), *[0] * len(rest)],
            var_shape=[rows[index], *rest],
        ).spec
        for index in range(len(parts))
    ]
