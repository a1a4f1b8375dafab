# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the pieces of variables that a partitioner has split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tf_fuse.parameter_server import arguments
from tf_fuse.parameter_server.abstract_build import note_pieces
from tf_fuse.parameter_server.partitioning import keras_checkpoints
from tf_fuse.parameter_server.partitioning.checkpoint_slices import save_by_pieces


def pieces(variables: Iterable[Any]) -> list[Any]:
    """List variables by their pieces, for gradients and optimizers that take each for a variable.

    With the option `place_variables` Keras 3's optimizers that work element by element need no
    such list. This is for others, and for programs without the option: a gradient tape and Keras
    3's optimizers would fail on a variable in pieces, and keep slots, whole, on the coordinator.

        weights = tf_fuse.parameter_server.partitioning.pieces(model.trainable_variables)
        optimizer.build(weights)
        ...
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    In a function that `tf_fuse.parameter_server.build` is called with it also says that these
    variables may be in pieces, where the strategy has no partitioner.

    Args:
      variables: of TensorFlow or Keras, split or whole.

    Returns:
      TensorFlow's variables: in place of one that is split its pieces, in order.

    Raises:
      TypeError: it is not a list of variables; the text names the item that is not a variable.
    """
    from tensorflow.python.distribute import sharded_variable
    from tensorflow.python.ops import variables as variables_module

    # (A variable can be iterated over, by rows.)
    kinds = (variables_module.Variable, sharded_variable.ShardedVariable)
    is_one = isinstance(variables, (*kinds, str, bytes)) or hasattr(variables, "value")
    if is_one or not isinstance(variables, Iterable):
        raise TypeError(
            f"variables is {arguments.described(variables)}, must be a list of variables"
        )
    found: list[Any] = []
    for index, one in enumerate(variables):
        value = one if isinstance(one, kinds) else getattr(one, "value", None)  # of Keras 3
        if value is None:
            raise TypeError(
                f"variables[{index}] is {arguments.described(one)}, must be a variable of "
                "TensorFlow or Keras"
            )
        if isinstance(value, sharded_variable.ShardedVariable):
            save_by_pieces(value)
            keras_checkpoints.remember(one, value.variables)
            found += value.variables
        else:
            keras_checkpoints.remember(one, [value])
            found.append(value)
    note_pieces(found)
    return found
