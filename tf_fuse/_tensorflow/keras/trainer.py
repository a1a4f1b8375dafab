# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend the training loops of Keras 3 on TensorFlow, and how they assign to metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import ANY, AT_FIRST_USE, ON_OBJECTS, Exists, Member, Stored, Takes

_MODULE = "keras.src.backend.tensorflow.trainer"
_TRAINER = f"{_MODULE}:TensorFlowTrainer"
_FEATURES = (feature_names.KERAS_FIT,)
_VERSIONS = "Keras 3"
_FILE = "A file has the values between two steps."
_MODEL = "keras.src.models.model:Model"
_SAVERS = (
    # `Model.save` and `keras.saving` call these of modules.
    ("keras.src.saving.saving_lib", "save_model"),
    ("keras.src.saving.saving_lib", "save_weights_only"),
    ("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"),
    (_MODEL, "export"),
    (_MODEL, "get_state_tree"),  # of `OrbaxCheckpoint`
)
_CHECKPOINT = "save"


def _member(owner: str, name: str, why: str, *parameters: str, when: str = AT_FIRST_USE) -> Member:
    return Member(owner, name, Takes(*parameters), why, _FEATURES, when, _VERSIONS)


# By name, without the underscore that some begin with.
_BY_NAME: Final = {
    "make_function": _member(
        _TRAINER,
        "_make_function",
        "Workers run the steps of training and evaluation.",
        "self",
        "step_function",
    ),
    "make_predict_function": _member(
        _TRAINER, "make_predict_function", "Workers run the steps of predictions.", "self", "force"
    ),
    "get_metrics_result_or_logs": _member(
        "keras.src.trainers.trainer:Trainer",
        "_get_metrics_result_or_logs",
        "All steps have ended when their metrics are read.",
        "self",
        "logs",
    ),
    "__init__": _member(
        f"{_MODULE}:TFEpochIterator",
        "__init__",
        "The coordinator reads the data; Keras would distribute the dataset, which fails.",
        "self",
        "distribute_strategy",
        "args",
        "kwargs",
    ),
    "potentially_ragged_concat": _member(
        _MODULE,
        "potentially_ragged_concat",
        "Predictions are fetched when all batches have been given to workers.",
        "tensors",
    ),
    "direct_assign": _member(
        "keras.src.backend.tensorflow.core:Variable",
        "_direct_assign",
        "Metrics add in one operation what they would read, add to and assign.",
        "self",
        "value",
    ),
    "apply": _member(
        "keras.src.backend.tensorflow.optimizer:TFOptimizer",
        "apply",
        "Optimizers that accumulate gradients update variables in branches.",
        "self",
        "grads",
        "trainable_variables",
    ),
    "compile": _member(
        "keras.src.trainers.trainer:Trainer",
        "compile",
        "A model of parameter servers is compiled in the strategy's scope.",
        "self",
        *(ANY,) * 9,
    ),
    **{
        name: Member(
            _TRAINER,
            name,
            Exists(),
            "Two threads that train one model on servers get an error.",
            _FEATURES,
            AT_FIRST_USE,
            _VERSIONS,
        )
        for name in ("fit", "evaluate")
    },
    **{
        name: Member(owner, name, Exists(), _FILE, _FEATURES, AT_FIRST_USE, _VERSIONS)
        for owner, name in _SAVERS
    },
    # Of `tf.train.Checkpoint` and `tf.saved_model.save`.
    _CHECKPOINT: Member(
        "tensorflow.python.checkpoint.checkpoint:TrackableSaver",
        "save",
        Exists(),
        _FILE,
        _FEATURES,
        AT_FIRST_USE,
    ),
    "maybe_symbolic_build": _member(
        _TRAINER,
        "_maybe_symbolic_build",
        "Keras fails without a reason if a layer is not on servers, or if data has no batch.",
        "self",
        "iterator",
        "data_batch",
    ),
}
#: Names of members that write files, or read all values for one.
SAVERS: Final = (*(name for _, name in _SAVERS), _CHECKPOINT)
_extended: set[str] = set()
_EPOCHS = "keras.src.trainers.epoch_iterator:EpochIterator"
MEMBERS = (
    *_BY_NAME.values(),
    _member(
        _EPOCHS,
        "_interrupted_warning",
        "Data that workers read may end after any number of calls.",
        "self",
        when=ON_OBJECTS,
    ),
    _member(
        _EPOCHS,
        "reset",
        "It restores the length of a whole dataset, whose parts may need more calls.",
        "self",
        when=ON_OBJECTS,
    ),
    Member(
        _EPOCHS,
        "_num_batches",
        Stored(),
        "is the length of the last epoch, which does not bound the next one",
        _FEATURES,
        ON_OBJECTS,
        _VERSIONS,
    ),
    Member(
        f"{_MODULE}:TFEpochIterator",
        "_distributed_dataset",
        Stored(),
        "is what an epoch iterates over",
        _FEATURES,
        ON_OBJECTS,
        _VERSIONS,
    ),
    Member(
        _EPOCHS,
        "steps_per_epoch",
        Stored(),
        "is None if an epoch ends with its data",
        _FEATURES,
        versions=_VERSIONS,
    ),
    Member(
        _TRAINER,
        "_distribute_strategy",
        Stored(),
        "is the strategy in whose scope a model was made",
        (*_FEATURES, feature_names.KERAS_PROCESSES),
        versions=_VERSIONS,
    ),
)


def extend(methods: Mapping[str, Callable[..., Any]]) -> None:
    """Extend the methods and functions of the table above, once per process.

    Args:
      methods: by name, what gets the stock function, and then what that gets.
    """
    for name, method in methods.items():
        if name not in _extended:  # Another feature may have replaced the same member.
            monkey_patch.extend(_BY_NAME[name], method)
            _extended.add(name)


def strategy_of(model: Any) -> Any:
    """Return the strategy in whose scope a model was made; None if there was none."""
    return getattr(model, "_distribute_strategy", None)


def dataset_of(epochs: Any) -> Any:
    """Return what the epochs of a `TFEpochIterator` iterate over."""
    return epochs._distributed_dataset


def set_dataset(epochs: Any, dataset: Any) -> None:
    """Set what the epochs of a `TFEpochIterator` iterate over."""
    epochs._distributed_dataset = dataset


def steps_per_epoch(epochs: Any) -> int | None:
    """Return how many steps each epoch has; None if it ends with its data."""
    steps = epochs.steps_per_epoch
    return None if steps is None else int(steps)


def let_end_anywhere(epochs: Any) -> None:
    """Let each epoch of an `EpochIterator` end when its data ends, without a warning."""

    def forget_length() -> None:
        epochs._num_batches = None

    stock_reset = epochs.reset

    def reset() -> None:
        stock_reset()
        forget_length()

    forget_length()
    epochs._interrupted_warning = forget_length
    epochs.reset = reset
