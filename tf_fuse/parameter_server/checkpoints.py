# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Keras 3's variables in pieces, and of an optimizer that has been given these.

A variable is saved as slices of one tensor, as TensorFlow does by itself where Keras is not
around it. An optimizer has a slot for each piece, and its checkpoint would have them one by one: a
program with other pieces, or none, could not read it. TensorFlow asks an optimizer what to save by
`_trackable_children`; in place of the pieces that tells the whole variables, and in place of their
slots one variable each that has those as its pieces, under the names of whole weights. TensorFlow
writes and reads the pieces of a variable as slices of one tensor.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_OWNER = "_tf_fuse_whole"
_KERAS = "keras.src.backend.tensorflow.optimizer"
# Class of Keras's variables to the one of those that are in pieces.
_sliced_classes: dict[type, type] = {}


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
    """Notes what variables are pieces of.

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
    """Has a variable of Keras 3 save and restore its pieces, which it cannot by itself.

    TensorFlow asks the first class of an object that tells how, so this one gets another class. (By
    the method that Keras's class has, slices are saved, but not restored.)
    """
    from tensorflow.python.distribute import sharded_variable

    if not isinstance(whole, sharded_variable.ShardedVariable):
        whole.__class__ = _sliced(type(whole))


def _sliced(cls: type) -> type:
    if "_gather_saveables_for_checkpoint" in vars(cls):
        return cls

    def gather(self: Any) -> Any:
        return self.value._gather_saveables_for_checkpoint()

    # (Of two threads' classes either one will do.)
    return _sliced_classes.setdefault(
        cls, type(cls.__name__, (cls,), {"_gather_saveables_for_checkpoint": gather})
    )


def _install() -> None:
    """Has optimizers of Keras 3 tell of whole variables, once per process."""
    module = sys.modules.get(_KERAS)
    cls = getattr(module, "TFOptimizer", None)
    if cls is None or getattr(cls, "_tf_fuse_saves", False):
        return
    stock = cls._trackable_children

    def trackable_children(self: Any, save_type: Any = "checkpoint", **kwargs: Any) -> Any:
        children = stock(self, save_type, **kwargs)
        return _with_wholes(self, children) if save_type == "checkpoint" else children

    trackable_children.__doc__ = stock.__doc__
    cls._trackable_children = trackable_children
    cls._tf_fuse_saves = True


def _with_wholes(optimizer: Any, children: dict[str, Any]) -> dict[str, Any]:
    """Replaces pieces and their slots in what an optimizer tells."""
    weights = list(getattr(optimizer, "_trainable_variables", None) or ())
    runs = _runs(weights)
    if not runs:
        return children
    made = _made(optimizer)
    # By identity, what stands for a variable; None: nothing does, since it is not the first piece.
    instead: dict[int, Any] = {}
    for name, child in children.items():
        # (One for each weight. `_variables` has the iterations, too.)
        if name != "_variables" and _is_list(child) and len(child) == len(weights):
            for run in runs:
                pieces = list(child)[run.first : run.first + run.count]
                whole = run.whole
                if name != "_trainable_variables":
                    whole = _joined(made, name, run, pieces) if run.count > 1 else None
                if whole is not None:
                    instead.update({id(one): None for one in pieces})
                    instead[id(pieces[0])] = whole
    return {name: _replaced(made, name, child, instead) for name, child in children.items()}


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
    """What was made for an optimizer so far: TensorFlow knows objects by their identity."""
    made: dict[Any, Any] | None = vars(optimizer).get("_tf_fuse_wholes")
    if made is None:
        made = {}
        object.__setattr__(optimizer, "_tf_fuse_wholes", made)
    return made


def _joined(made: dict[Any, Any], name: str, run: _Run, slots: Sequence[Any]) -> Any:
    """One variable whose pieces are slots; None if a slot is not of its weight's shape."""
    from tensorflow.python.distribute import sharded_variable

    key = name, run.first
    if key not in made:
        variables = [getattr(one, "value", one) for one in slots]
        whole = run.whole.shape
        is_alike = sum(one.shape[0] for one in variables if one.shape.rank) == whole[0] and all(
            one.shape[1:] == tuple(whole[1:]) for one in variables
        )
        made[key] = sharded_variable.ShardedVariable(variables, name=name) if is_alike else None
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
