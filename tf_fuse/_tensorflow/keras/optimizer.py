# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend optimizers of Keras 3 on TensorFlow: `TFOptimizer`, and the classes that build slots."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import ANY, AT_FIRST_USE, Member, Stored, Takes

#: Names of methods that are extended, for `extend`.
BACKEND_APPLY: Final = "_backend_apply_gradients"
CLIP: Final = "_clip_gradients"
USES_DECAY: Final = "_use_weight_decay"
AVERAGE: Final = "_overwrite_model_variables_with_average_value"
CHILDREN: Final = "_trackable_children"
#: The list of the variables that an optimizer was built with.
WEIGHTS: Final = "_trainable_variables"
_VARIABLES: Final = "_variables"
#: Optimizers that work element by element: of pieces, the same bits as of the whole.
ELEMENTWISE: Final = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD",
)  # fmt: skip

_MODULE = "keras.src.backend.tensorflow.optimizer"
_CLASS = f"{_MODULE}:TFOptimizer"
_OPTIMIZERS = "keras.src.optimizers"
_FEATURES = (feature_names.KERAS_IN_PIECES,)
_VERSIONS = "Keras 3"
_WHY = {
    "build": "Slots are beside the pieces of a variable; optimizers that need a whole one refuse.",
    "apply": "Gradients of variables in pieces are applied to the pieces.",
    BACKEND_APPLY: "The variables are known while gradients are clipped.",
    CLIP: "Norms are of whole gradients.",
    USES_DECAY: "Programs exclude whole variables by name.",
    AVERAGE: "Averages are kept beside the pieces.",
    "save_own_variables": "Keras's files have whole slots in place of those of pieces.",
    "load_own_variables": "Keras's files have whole slots in place of those of pieces.",
    CHILDREN: "A checkpoint has whole variables and slots in place of pieces.",
}
_BY_NAME: Final = {
    name: Member(_CLASS, name, Takes("self", *more), _WHY[name], _FEATURES, AT_FIRST_USE, _VERSIONS)
    for name, *more in (
        ("build", ANY),
        ("apply", "grads", "trainable_variables"),
        (BACKEND_APPLY, "grads", "trainable_variables"),
        (CLIP, "grads"),
        (USES_DECAY, "variable"),
        (AVERAGE, "trainable_variables"),
        ("save_own_variables", "store"),
        ("load_own_variables", "store"),
        (CHILDREN, "save_type", "kwargs"),
    )
}
_BUILDS: Final = {
    name: Member(
        f"{_OPTIMIZERS}.{name.lower()}:{name}",
        "build",
        Takes("self", ANY),
        "An optimizer that works element by element makes slots of pieces.",
        _FEATURES,
        AT_FIRST_USE,
        _VERSIONS,
    )
    for name in ELEMENTWISE
}
_ADD: Final = Member(
    _CLASS,
    "add_variable_from_reference",
    Takes("self", "reference_variable", "name", "initializer"),
    "is wrapped while tf-fuse plan-cluster traces a program, to know whose slot a variable is",
    (feature_names.PREDICTIONS,),
    versions=_VERSIONS,
)
MEMBERS = (
    _ADD,
    *_BY_NAME.values(),
    *_BUILDS.values(),
    *(
        Member(
            f"{_OPTIMIZERS}.{name.lower()}:{name}",
            "update_step",
            Takes("self", ANY, "variable", "learning_rate"),
            "is compared, to leave optimizers of a program alone that override it",
            _FEATURES,
            versions=_VERSIONS,
        )
        for name in ELEMENTWISE
    ),
    *(
        Member(
            "keras.src.optimizers.base_optimizer:BaseOptimizer",
            name,
            Stored(),
            why,
            _FEATURES,
            versions=_VERSIONS,
        )
        for name, why in (
            (WEIGHTS, "holds the variables that an optimizer was built with"),
            (_VARIABLES, "holds the slots of all weights, and the iterations"),
        )
    ),
)


def base_class() -> Any:
    """Return `TFOptimizer`; None if Keras has not been imported, or not its optimizers."""
    cls = getattr(sys.modules.get(_MODULE), "TFOptimizer", None)
    return cls if hasattr(sys.modules.get(_OPTIMIZERS), "SGD") else None


def elementwise_classes() -> Sequence[Any]:
    """Return the optimizers that work element by element."""
    return [member.resolve() for member in _BUILDS.values()]


def extend_build(cls: Any, build: Callable[..., Any]) -> Any:
    """Extend `build` of an optimizer that works element by element.

    Args:
      cls: one of `elementwise_classes`.
      build: gets the stock method, the optimizer and the variables.

    Returns:
      The new method.
    """
    return monkey_patch.extend(_BUILDS[cls.__name__], build)


def extend(methods: Mapping[str, Callable[..., Any]]) -> None:
    """Extend methods of `TFOptimizer`.

    Args:
      methods: by name, what gets the stock method, and then what that gets.
    """
    for name, method in methods.items():
        monkey_patch.extend(_BY_NAME[name], method)


def is_extended(name: str) -> bool:
    """Return whether a method of `TFOptimizer` is extended."""
    return monkey_patch.is_replaced(_BY_NAME[name])


def weights_of(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer was built with; none before that."""
    return list(getattr(optimizer, WEIGHTS, None) or ())


def lists_by_weight(optimizer: Any) -> dict[str, list[Any]]:
    """Return the lists with one variable for each weight, by name: the weights, and slots.

    Other lists have the iterations, too.
    """
    count = len(weights_of(optimizer))
    found = {name: getattr(optimizer, name) for name in sorted(vars(optimizer))}
    return {
        name: list(child)
        for name, child in found.items()
        if isinstance(child, list) and name != _VARIABLES and len(child) == count
    }


@contextlib.contextmanager
def recorded_references() -> Iterator[list[tuple[Any, Any]]]:
    """Yield a list that gets each slot that a Keras optimizer makes meanwhile, and its weight."""
    found: list[tuple[Any, Any]] = []
    cls = _ADD.resolve()
    add = cls.add_variable_from_reference

    def add_and_note(self: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        slot = add(self, reference_variable, *args, **kwargs)
        found.append((slot, reference_variable))
        return slot

    cls.add_variable_from_reference = add_and_note
    try:
        yield found
    finally:
        cls.add_variable_from_reference = add
