# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Save Keras 3's variables in pieces, and their optimizers' slots, as whole variables.

A variable is saved as slices of one tensor, as TensorFlow does by itself without Keras. An
optimizer has a slot for each piece, and would save each one alone: a program with other pieces, or
none, could not read them. TensorFlow asks an optimizer for what to save by `_trackable_children`.
This module lists whole variables there in place of the pieces, and in place of their slots one
variable that has the slots as its pieces, under the names of whole weights. TensorFlow writes and
reads the pieces of a variable as slices of one tensor.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import optimizer as keras_optimizer
from tf_fuse._tensorflow.keras.optimizer import CHILDREN, WEIGHTS, lists_by_weight
from tf_fuse._tensorflow.keras.variable import save_as
from tf_fuse._tensorflow.variables.sharded_variable import saveables_of

_log = logging.getLogger("tf_fuse")
_OWNER = "_tf_fuse_whole"


@dataclass(frozen=True)
class _Run:
    """Pieces of one variable that follow each other, all of them and in order.

    Attributes:
      whole: what the program has: of TensorFlow or Keras.
      first: index of the first one.
      count: how many there are.
    """

    whole: Any
    first: int
    count: int


def remember(whole: Any, pieces: Sequence[Any]) -> None:
    """Remember the whole that variables are pieces of.

    Args:
      whole: of TensorFlow or Keras.
      pieces: of TensorFlow, in order; a whole variable of Keras has one.
    """
    for index, piece in enumerate(pieces):
        setattr(piece, _OWNER, (weakref.ref(whole), index, len(pieces)))
    if len(pieces) > 1:
        _save_by_slices(whole)
    _install()


def _save_by_slices(whole: Any) -> None:
    """Make a Keras 3 variable save and restore its pieces, which it cannot by itself.

    TensorFlow asks the first class of an object that defines how, so this one gets another class.
    (Keras's own method saves slices, but does not restore them.)
    """
    from tensorflow.python.distribute import sharded_variable

    if not isinstance(whole, sharded_variable.ShardedVariable):
        save_as(whole, lambda one: saveables_of(one.value))


def _install() -> None:
    """Make Keras 3's optimizers list whole variables, once per process."""
    if keras_optimizer.base_class() is None or keras_optimizer.is_extended(CHILDREN):
        return
    if features.works(feature_names.KERAS_IN_PIECES):
        keras_optimizer.extend({CHILDREN: _trackable_children})


def _trackable_children(
    stock: Any, optimizer: Any, save_type: Any = "checkpoint", **kwargs: Any
) -> Any:
    children = stock(optimizer, save_type, **kwargs)
    return _with_wholes(optimizer, children) if save_type == "checkpoint" else children


def _with_wholes(optimizer: Any, children: dict[str, Any]) -> dict[str, Any]:
    """Replace pieces and their slots by whole variables in an optimizer's list."""
    instead = _instead(optimizer)
    if not instead:
        return children
    made = _made(optimizer)
    return {name: _replaced(made, name, child, instead) for name, child in children.items()}


def _instead(optimizer: Any) -> dict[int, Any]:
    """Return, by identity, a piece's replacement; None for all but the first piece."""
    runs = _runs(keras_optimizer.weights_of(optimizer))
    instead: dict[int, Any] = {}
    for name, child in lists_by_weight(optimizer).items() if runs else ():
        for run in runs:
            pieces = child[run.first : run.first + run.count]
            whole = run.whole
            if name != WEIGHTS:
                whole = _joined(_made(optimizer), name, run, pieces) if run.count > 1 else None
            if whole is not None:
                instead.update({id(one): None for one in pieces})
                instead[id(pieces[0])] = whole
    return instead


def whole_variables(optimizer: Any) -> list[Any] | None:
    """Return an optimizer's own variables, with one in place of the slots of all pieces.

    Returns:
      In the order of an optimizer without pieces. None if some slots are not parts of a whole.
    """
    instead = _instead(optimizer)
    runs = [one for one in _runs(keras_optimizer.weights_of(optimizer)) if one.count > 1]
    slots = [
        slot
        for child in lists_by_weight(optimizer).values()
        for run in runs
        for slot in child[run.first : run.first + run.count]
    ]
    own = {id(one) for one in optimizer.variables}
    if not runs or any(id(one) in own and id(one) not in instead for one in slots):
        return None
    found = [instead.get(id(one), one) for one in optimizer.variables]
    return [one for one in found if one is not None]


def _runs(weights: Sequence[Any]) -> list[_Run]:
    runs = []
    for first, weight in enumerate(weights):
        found = getattr(weight, _OWNER, None)
        if found is None or found[1] != 0 or found[0]() is None:
            continue
        owner, _, count = found
        others = [getattr(one, _OWNER, None) for one in weights[first : first + count]]
        if others == [(owner, index, count) for index in range(count)]:
            runs.append(_Run(owner(), first, count))
    return runs


def _made(optimizer: Any) -> dict[Any, Any]:
    """Return the wholes made for an optimizer so far: TensorFlow identifies objects by identity."""
    made: dict[Any, Any] | None = vars(optimizer).get("_tf_fuse_wholes")
    if made is None:
        made = {}
        object.__setattr__(optimizer, "_tf_fuse_wholes", made)
    return made


def _joined(made: dict[Any, Any], name: str, run: _Run, slots: Sequence[Any]) -> Any:
    """Return one variable whose pieces are slots; None if a slot has not its weight's shape."""
    from tensorflow.python.distribute import sharded_variable

    key = name, run.first
    if not all(hasattr(one, "shape") for one in slots):  # (None, of a weight without one.)
        return None
    if key not in made:
        variables = [getattr(one, "value", one) for one in slots]
        whole = run.whole.shape
        is_alike = sum(one.shape[0] for one in variables if one.shape.rank) == whole[0] and all(
            one.shape[1:] == tuple(whole[1:]) for one in variables
        )
        made[key] = sharded_variable.ShardedVariable(variables, name=name) if is_alike else None
        if not is_alike:
            _log.warning(
                "the optimizer keeps %r of shape %s beside a piece of %r: a checkpoint has such "
                "variables piece by piece, and is read with the same pieces only",
                variables[0].name,
                tuple(variables[0].shape),
                run.whole.name,
            )
    return made[key]


def _is_list(child: Any) -> bool:
    from tensorflow.python.trackable import data_structures

    return isinstance(child, (list, data_structures.List))


def _replaced(made: dict[Any, Any], name: str, child: Any, instead: dict[int, Any]) -> Any:
    from tensorflow.python.trackable import data_structures

    if not _is_list(child) or not any(id(one) in instead for one in child):
        return child
    found = [instead.get(id(one), one) for one in child]
    found = [one for one in found if one is not None]
    before = made.get(("list", name))
    if before is None or [*map(id, before)] != [*map(id, found)]:
        made["list", name] = data_structures.wrap_or_unwrap(found)
    return made["list", name]
