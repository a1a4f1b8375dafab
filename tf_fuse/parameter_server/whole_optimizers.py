# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras 3's optimizers on variables in pieces that a program takes for whole ones.

An optimizer that is built with variables in pieces is given the pieces in their place, and so are
its updates: slots are beside the pieces, and each server updates its own. What an optimizer does
to a variable as a whole, it still does: norms of gradients, constraints, weight decay by names.
Those that compute norms or means of weights, or what this does not know, are refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tf_fuse.parameter_server import abstract
from tf_fuse.parameter_server.pieces import pieces
from tf_fuse.parameter_server.whole_gradients import cut, in_pieces, joined, value_of

_BACKEND = "keras.src.backend.tensorflow.optimizer"
#: Optimizers that work element by element: of pieces, the same bits as of the whole.
ELEMENTWISE = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD",
)  # fmt: skip
_SPLIT = "_tf_fuse_split"


@dataclass(frozen=True)
class _Split:
    """What an optimizer was built with.

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
    """Extends Keras 3's optimizers, once per process, if Keras has been imported."""
    backend = sys.modules.get(_BACKEND)
    optimizers = sys.modules.get("keras.src.optimizers")
    base = getattr(backend, "TFOptimizer", None)
    if base is None or not hasattr(optimizers, "SGD"):
        return
    with _lock:
        if hasattr(base, "_tf_fuse_wholes"):
            return
        for name in ELEMENTWISE:
            _extend(getattr(optimizers, name))
        for extend in (_extend_build, _extend_apply, _extend_clipping, _extend_decay):
            extend(base)
        _extend_averages(base)
        _extend_files(base)
        base._tf_fuse_wholes = True


def _extend(cls: Any) -> None:
    """Has an optimizer that works element by element make slots of pieces."""
    _known["update_step"].add(cls.update_step)
    if cls.build in _known["build"]:  # of a class that it inherits from
        return
    stock = cls.build

    def build(self: Any, variables: Any) -> Any:
        if not _is_known(self):
            return stock(self, variables)
        variables = list(variables)
        abstract.note_pieces(value_of(one) for one in variables if not _is_overwritten(one))
        return stock(self, _taken_apart(self, variables))

    build.__doc__ = stock.__doc__
    cls.build = build
    _known["build"].add(build)


def _is_known(optimizer: Any) -> bool:
    cls = type(optimizer)
    return all(getattr(cls, name) in known for name, known in _known.items())


def _taken_apart(optimizer: Any, variables: list[Any]) -> list[Any]:
    """Pieces in place of variables in pieces; the optimizer remembers which is whose."""
    owners: dict[str, Any] = {}
    apart: list[Any] = []
    for one in variables:
        if in_pieces(one) is None:
            apart.append(one)
            continue
        if _is_overwritten(one):
            raise ValueError(_refusal(optimizer, one, "its gradient is its next value"))
        parts = pieces([one])
        owners.update((part._unique_id, one) for part in parts)
        apart += parts
    if owners:
        object.__setattr__(optimizer, _SPLIT, _Split(tuple(variables), owners))
    return apart


def _is_overwritten(variable: Any) -> bool:
    """Whether an optimizer takes the gradient of a variable for its next value."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _refusal(optimizer: Any, variable: Any, why: str) -> str:
    name = getattr(variable, "path", None) or variable.name
    return (
        f"the optimizer {type(optimizer).__name__} cannot update the variable {name!r} of shape "
        f"{tuple(variable.shape)}, which is in {len(in_pieces(variable).variables)} pieces on "
        f"parameter servers: {why}. Use one of {', '.join(ELEMENTWISE)}, or a strategy without "
        "variable_partitioner; if each piece may be taken for a variable of its own, build the "
        "optimizer with tf_fuse.parameter_server.pieces(variables)"
    )


def _extend_build(base: Any) -> None:
    stock = base.build

    def build(self: Any, variables: Any) -> Any:
        for one in variables:
            if in_pieces(one) is not None:
                raise ValueError(_refusal(self, one, "it may need more than a piece at a time"))
        return stock(self, variables)

    build.__doc__ = stock.__doc__
    base.build = build


def _extend_apply(base: Any) -> None:
    stock, stock_backend = base.apply, base._backend_apply_gradients

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if trainable_variables is None:
            split = vars(self).get(_SPLIT)
            if split is None or len(grads) != len(split.wholes):
                return stock(self, grads)
            variables = list(split.wholes)
        else:
            variables = list(trainable_variables)
        if not any(in_pieces(one) is not None for one in variables):
            return stock(self, grads, variables if trainable_variables is not None else None)
        if not self.built:
            with sys.modules["keras.src.backend"].name_scope(self.name, caller=self):
                self.build(variables)
            self.built = True
        result = stock(self, *_apart(list(grads), variables))
        _constrain(list(grads), variables)
        return result

    def backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> Any:
        _thread.variables.append(trainable_variables)
        try:
            return stock_backend(self, grads, trainable_variables)
        finally:
            _thread.variables.pop()

    apply.__doc__ = stock.__doc__
    backend_apply_gradients.__doc__ = stock_backend.__doc__
    base.apply, base._backend_apply_gradients = apply, backend_apply_gradients


def _apart(grads: list[Any], variables: list[Any]) -> tuple[list[Any], list[Any]]:
    """Gradients and variables, by pieces."""
    apart: tuple[list[Any], list[Any]] = [], []
    for gradient, one in zip(grads, variables, strict=True):
        sharded = in_pieces(one)
        apart[0].extend([gradient] if sharded is None else cut(sharded, gradient))
        apart[1].extend([one] if sharded is None else sharded.variables)
    return apart


def _constrain(grads: list[Any], variables: list[Any]) -> None:
    """Applies the constraints of variables in pieces, of which the pieces know nothing."""
    for gradient, one in zip(grads, variables, strict=True):
        constraint = getattr(one, "constraint", None)
        if gradient is not None and constraint is not None and in_pieces(one) is not None:
            one.assign(constraint(one))


def _extend_clipping(base: Any) -> None:
    stock = base._clip_gradients

    def clip_gradients(self: Any, grads: Any) -> Any:
        split = vars(self).get(_SPLIT)
        if split is None or not _thread.variables or not (self.clipnorm or self.global_clipnorm):
            return stock(self, grads)
        return _clipped(
            split, list(grads), _thread.variables[-1], lambda wholes: stock(self, wholes)
        )

    clip_gradients.__doc__ = stock.__doc__
    base._clip_gradients = clip_gradients


def _clipped(split: _Split, grads: list[Any], variables: Sequence[Any], clip: Any) -> list[Any]:
    """Clips gradients by the norms of whole ones."""
    wholes: list[Any] = []
    owners: list[Any] = []
    index = 0
    while index < len(grads):
        owner = split.owners.get(getattr(value_of(variables[index]), "_unique_id", ""))
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


def _extend_decay(base: Any) -> None:
    stock = base._use_weight_decay

    def use_weight_decay(self: Any, variable: Any) -> Any:
        split = vars(self).get(_SPLIT)
        owner = split and split.owners.get(getattr(value_of(variable), "_unique_id", ""))
        if owner is None:
            return stock(self, variable)
        # (Who excludes variables names whole ones.)
        name = in_pieces(owner).variables[0].name.replace("/part_0:", ":")
        whole = SimpleNamespace(_unique_id=in_pieces(owner)._unique_id, name=name)
        return stock(self, whole)

    use_weight_decay.__doc__ = stock.__doc__
    base._use_weight_decay = use_weight_decay


def _extend_averages(base: Any) -> None:
    stock = base._overwrite_model_variables_with_average_value

    def overwrite(self: Any, trainable_variables: Any) -> Any:
        if vars(self).get(_SPLIT) is not None:
            none = [None] * len(trainable_variables)
            trainable_variables = _apart(none, list(trainable_variables))[1]
        return stock(self, trainable_variables)

    overwrite.__doc__ = stock.__doc__
    base._overwrite_model_variables_with_average_value = overwrite


def _extend_files(base: Any) -> None:
    """Keras's own files have an optimizer's variables by number: those of pieces would be wrong."""
    for name in ("save_own_variables", "load_own_variables"):
        stock = getattr(base, name)

        def checked(self: Any, store: Any, stock: Any = stock, name: str = name) -> Any:
            split = vars(self).get(_SPLIT)
            if split is not None:
                raise ValueError(
                    f"{name}: the optimizer {self.name!r} keeps variables for each piece of "
                    f"{len(set(map(id, split.owners.values())))} of its variables, which Keras's "
                    "files cannot tell: use tf.train.Checkpoint, which has them whole, or "
                    "model.save_weights or include_optimizer=False for the model alone"
                )
            return stock(self, store)

        checked.__doc__ = stock.__doc__
        setattr(base, name, checked)
