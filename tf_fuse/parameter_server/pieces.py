# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pieces of variables that a partitioner has split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tf_fuse.parameter_server import checkpoints
from tf_fuse.parameter_server.abstract import note_pieces


def pieces(variables: Iterable[Any]) -> list[Any]:
    """Lists variables by their pieces, for gradients and optimizers that know of whole ones only.

    A Keras 3 layer can have a variable that a partitioner has split; a gradient tape and Keras 3's
    optimizers cannot: they would fail, and keep the slots, whole, on the coordinator.

        weights = tf_fuse.parameter_server.pieces(model.trainable_variables)
        optimizer.build(weights)
        ...
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    In a function that `tf_fuse.parameter_server.build` is called with it also says that these
    variables may be in pieces, where the strategy has no partitioner.

    Args:
      variables: of TensorFlow or Keras, split or whole.

    Returns:
      TensorFlow's variables: in place of one that is split its pieces, in order.
    """
    from tensorflow.python.distribute import sharded_variable
    from tensorflow.python.ops import variables as variables_module

    found: list[Any] = []
    for whole in variables:
        one = whole
        if not isinstance(one, (variables_module.Variable, sharded_variable.ShardedVariable)):
            one = getattr(one, "value", one)  # of Keras 3
        if isinstance(one, sharded_variable.ShardedVariable):
            checkpoints.remember(whole, one.variables)
            found += one.variables
        else:
            if one is not whole and isinstance(one, variables_module.Variable):
                checkpoints.remember(whole, [one])
            found.append(one)
    note_pieces(found)
    return found
