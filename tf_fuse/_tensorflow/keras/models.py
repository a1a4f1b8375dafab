# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace the functions with which models of Keras 3 and tf_keras run their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Stored, Takes

STEPS: Final = ("train", "test", "predict")

_OWNERS = {
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer": "Keras 3",
    "tf_keras.src.engine.training:Model": "tf_keras 2.21",
}
_FEATURES = (feature_names.LAYOUT,)
# What runs steps of Keras 3 is also read and set for `fit` on a cluster.
_OF_FUNCTIONS = {
    owner: _FEATURES + (feature_names.KERAS_FIT,) * owner.startswith("keras.") for owner in _OWNERS
}
MEMBERS = (
    *(
        Member(
            owner,
            f"make_{step}_function",
            Takes("self", "force"),
            "A model that is laid out runs its steps by plans.",
            _FEATURES,
            ON_OBJECTS,
            versions,
        )
        for owner, versions in _OWNERS.items()
        for step in STEPS
    ),
    *(
        Member(
            owner,
            f"{step}_function",
            Stored(),
            "holds what `fit`, `evaluate` or `predict` runs",
            _OF_FUNCTIONS[owner],
            ON_OBJECTS,
            versions,
        )
        for owner, versions in _OWNERS.items()
        for step in STEPS
    ),
    *(
        Member(
            "tf_keras.src.engine.training:Model",
            f"_{step}_counter",
            Stored(),
            "counts the steps that a model has run, in the graph of a step",
            _FEATURES,
            versions="tf_keras 2.21",
        )
        for step in STEPS
    ),
    Member(
        "tf_keras.src.engine.training:Model",
        "_steps_per_execution",
        Stored(),
        "is the number of steps of one call",
        _FEATURES,
        versions="tf_keras 2.21",
    ),
)


def made(model: Any, step: str) -> Any:
    """Return what a model runs for a step; None before it is made."""
    return getattr(model, f"{step}_function", None)


def set_made(model: Any, step: str, function: Any) -> None:
    """Set what a model runs for a step; None lets Keras ask for it again."""
    setattr(model, f"{step}_function", function)


def replace_makers(model: Any, make: Callable[[str], Callable[..., Any]]) -> None:
    """Replace what makes a model's functions; `make` returns it for a step."""
    for step in STEPS:
        set_made(model, step, None)
        setattr(model, f"make_{step}_function", make(step))


def put_back_makers(model: Any) -> None:
    """Give a model its own methods back."""
    for step in STEPS:
        set_made(model, step, None)
        vars(model).pop(f"make_{step}_function", None)


def count_step(model: Any, step: str) -> None:
    """Count a step of a model of tf_keras, which does so in the step's graph."""
    counter = getattr(model, f"_{step}_counter", None)
    if counter is not None:
        counter.assign_add(1)


def steps_per_call(model: Any) -> Any:
    """Return how many steps Keras runs in one call; None if the model does not say."""
    given = getattr(model, "steps_per_execution", None)
    return getattr(model, "_steps_per_execution", None) if given is None else given
