# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make Keras 3's optimizers update variables in pieces that a program uses as whole ones.

An optimizer that is built with variables in pieces gets the pieces instead, and so do its updates:
slots are beside the pieces, and each server updates its own. What an optimizer does to a whole
variable still works: norms of gradients, constraints, weight decay by names. Optimizers that
compute norms or means of weights, and unknown ones, are refused.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import optimizer as keras_optimizer
from tf_fuse._tensorflow.keras.optimizer import ELEMENTWISE
from tf_fuse._tensorflow.variables.resource_variable import unique_id
from tf_fuse.parameter_server import abstract_build
from tf_fuse.parameter_server.partitioning import keras_checkpoints
from tf_fuse.parameter_server.partitioning.gradient_tape import cut, in_pieces, joined, value_of
from tf_fuse.parameter_server.partitioning.pieces import pieces

_SPLIT = "_tf_fuse_split"


@dataclass(frozen=True)
class _Split:
    """The variables that an optimizer was built with.

    Attributes:
      wholes: as the program gave them.
      owners: the one that a piece is of, by the piece's `_unique_id`.
    """

    wholes: tuple[Any, ...]
    owners: dict[str, Any]


class _Thread(threading.local):
    """The variables whose gradients an optimizer is about to apply, the innermost last."""

    def __init__(self) -> None:
        self.variables: list[Sequence[Any]] = []


_thread = _Thread()
_known: dict[str, set[Any]] = {"build": set(), "update_step": set()}
_lock = threading.Lock()


def install() -> None:
    """Extend Keras 3's optimizers, once per process, if Keras has been imported."""
    if keras_optimizer.base_class() is None:
        return
    with _lock:
        if keras_optimizer.is_extended("build") or not features.works(
            feature_names.KERAS_IN_PIECES
        ):
            return
        for cls in keras_optimizer.elementwise_classes():
            _known["update_step"].add(cls.update_step)
            if cls.build not in _known["build"]:  # else of a class that it inherits from
                _known["build"].add(keras_optimizer.extend_build(cls, _build_pieces))
        keras_optimizer.extend(
            {
                "apply": _apply,
                keras_optimizer.BACKEND_APPLY: _backend_apply_gradients,
                keras_optimizer.CLIP: _clip_gradients,
                keras_optimizer.USES_DECAY: _use_weight_decay,
                keras_optimizer.AVERAGE: _overwrite_with_averages,
                "save_own_variables": _save_file,
                "load_own_variables": _load_file,
                "build": _build_wholes,
            }
        )


def _build_pieces(stock: Any, optimizer: Any, variables: Any) -> Any:
    """Make slots of pieces, in an optimizer that works element by element."""
    if not _is_known(optimizer):
        return stock(optimizer, variables)
    variables = list(variables)
    abstract_build.note_pieces(value_of(one) for one in variables if not _is_overwritten(one))
    return stock(optimizer, _taken_apart(optimizer, variables))


def _is_known(optimizer: Any) -> bool:
    cls = type(optimizer)
    return all(getattr(cls, name) in known for name, known in _known.items())


def _taken_apart(optimizer: Any, variables: list[Any]) -> list[Any]:
    """Replace variables in pieces by their pieces; the optimizer remembers which is whose."""
    owners: dict[str, Any] = {}
    apart: list[Any] = []
    for one in variables:
        if in_pieces(one) is None:
            apart.append(one)
            continue
        if _is_overwritten(one):
            raise ValueError(_refusal(optimizer, one, "its gradient is its next value"))
        parts = pieces([one])
        owners.update((unique_id(part), one) for part in parts)
        apart += parts
    if owners:
        object.__setattr__(optimizer, _SPLIT, _Split(tuple(variables), owners))
    return apart


def _is_overwritten(variable: Any) -> bool:
    """Return whether an optimizer takes the gradient of a variable for its next value."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _refusal(optimizer: Any, variable: Any, why: str) -> str:
    name = getattr(variable, "path", None) or variable.name
    return (
        f"the optimizer {type(optimizer).__name__} cannot update the variable {name!r} of shape "
        f"{tuple(variable.shape)}, which is in {len(in_pieces(variable).variables)} pieces on "
        f"parameter servers: {why}. Use one of {', '.join(ELEMENTWISE)}, or a strategy without "
        "variable_partitioner; if each piece may be taken for a variable of its own, build the "
        "optimizer with tf_fuse.parameter_server.partitioning.pieces(variables)"
    )


def _build_wholes(stock: Any, optimizer: Any, variables: Any) -> Any:
    for one in variables:
        if in_pieces(one) is not None:
            raise ValueError(_refusal(optimizer, one, "it may need more than a piece at a time"))
    return stock(optimizer, variables)


def _apply(stock: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    if trainable_variables is None:
        split = vars(optimizer).get(_SPLIT)
        if split is None or len(grads) != len(split.wholes):
            return stock(optimizer, grads)
        variables = list(split.wholes)
    else:
        variables = list(trainable_variables)
    if not any(in_pieces(one) is not None for one in variables):
        return stock(optimizer, grads, variables if trainable_variables is not None else None)
    if not optimizer.built:
        import keras

        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)
        optimizer.built = True
    result = stock(optimizer, *_apart(list(grads), variables))
    _constrain(list(grads), variables)
    return result


def _backend_apply_gradients(
    stock: Any, optimizer: Any, grads: Any, trainable_variables: Any
) -> Any:
    _thread.variables.append(trainable_variables)
    try:
        return stock(optimizer, grads, trainable_variables)
    finally:
        _thread.variables.pop()


def _apart(grads: list[Any], variables: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the gradients and variables, by pieces."""
    apart: tuple[list[Any], list[Any]] = [], []
    for gradient, one in zip(grads, variables, strict=True):
        sharded = in_pieces(one)
        apart[0].extend([gradient] if sharded is None else cut(sharded, gradient))
        apart[1].extend([one] if sharded is None else sharded.variables)
    return apart


def _constrain(grads: list[Any], variables: list[Any]) -> None:
    """Apply the constraints of whole variables to their pieces."""
    for gradient, one in zip(grads, variables, strict=True):
        constraint = getattr(one, "constraint", None)
        if gradient is not None and constraint is not None and in_pieces(one) is not None:
            one.assign(constraint(one))


def _clip_gradients(stock: Any, optimizer: Any, grads: Any) -> Any:
    split = vars(optimizer).get(_SPLIT)
    has_norms = optimizer.clipnorm or optimizer.global_clipnorm
    if split is None or not _thread.variables or not has_norms:
        return stock(optimizer, grads)
    return _clipped(
        split, list(grads), _thread.variables[-1], lambda wholes: stock(optimizer, wholes)
    )


def _clipped(split: _Split, grads: list[Any], variables: Sequence[Any], clip: Any) -> list[Any]:
    """Clip gradients by the norms of whole ones."""
    wholes: list[Any] = []
    owners: list[Any] = []
    index = 0
    while index < len(grads):
        owner = split.owners.get(unique_id(value_of(variables[index])))
        count = 1
        if owner is None:
            wholes.append(grads[index])
        else:
            count = len(in_pieces(owner).variables)
            wholes.append(joined(in_pieces(owner), grads[index : index + count]))
        owners.append(owner)
        index += count
    clipped: list[Any] = []
    for owner, gradient in zip(owners, clip(wholes), strict=True):
        clipped += [gradient] if owner is None else cut(in_pieces(owner), gradient)
    return clipped


def _use_weight_decay(stock: Any, optimizer: Any, variable: Any) -> Any:
    split = vars(optimizer).get(_SPLIT)
    owner = split and split.owners.get(unique_id(value_of(variable)))
    if owner is None:
        return stock(optimizer, variable)
    # (Programs exclude whole variables by name.)
    name = in_pieces(owner).variables[0].name.replace("/part_0:", ":")
    return stock(optimizer, SimpleNamespace(_unique_id=unique_id(in_pieces(owner)), name=name))


def _overwrite_with_averages(stock: Any, optimizer: Any, trainable_variables: Any) -> Any:
    if vars(optimizer).get(_SPLIT) is not None:
        none = [None] * len(trainable_variables)
        trainable_variables = _apart(none, list(trainable_variables))[1]
    return stock(optimizer, trainable_variables)


def _save_file(stock: Any, optimizer: Any, store: Any) -> Any:
    """Save into one of Keras's own files, which number an optimizer's variables, whole ones."""
    import numpy as np

    if vars(optimizer).get(_SPLIT) is None:
        return stock(optimizer, store)
    for i, variable in enumerate(_wholes(optimizer, "save_own_variables")):
        pieces_of = getattr(variable, "variables", [variable])
        arrays = [one.numpy() for one in pieces_of]
        store[str(i)] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return None


def _load_file(stock: Any, optimizer: Any, store: Any) -> Any:
    """Load from one of Keras's own files."""
    if vars(optimizer).get(_SPLIT) is None:
        return stock(optimizer, store)
    wholes = _wholes(optimizer, "load_own_variables")
    if len(store.keys()) != len(wholes):
        warnings.warn(
            f"Skipping variable loading for optimizer {optimizer.name!r}, because it has "
            f"{len(wholes)} variables whereas the saved optimizer has {len(store.keys())}",
            stacklevel=2,
        )
        return None
    for i, variable in enumerate(wholes):
        variable.assign(store[str(i)])
    return None


def _wholes(optimizer: Any, name: str) -> list[Any]:
    found = keras_checkpoints.whole_variables(optimizer)
    if found is None:
        raise ValueError(
            f"{name}: the optimizer {optimizer.name!r} keeps variables for pieces of its variables "
            "which are not pieces of whole ones, so Keras's files cannot record them: use "
            "tf.train.Checkpoint"
        )
    return found
