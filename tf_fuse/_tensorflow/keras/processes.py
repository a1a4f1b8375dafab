# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend what Keras 3 does wrong if several processes train together, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Member, Shape, Stored, Takes

_MODULE = "keras.src.backend.tensorflow.trainer"
_TRAINER = f"{_MODULE}:TensorFlowTrainer"
_STRATEGY = (
    "tensorflow.python.distribute.collective_all_reduce_strategy:CollectiveAllReduceExtended"
)
_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"
_LOOPS = (feature_names.KERAS_PROCESSES,)
_FILES = (feature_names.KERAS_FILES,)


def _keras(
    owner: str, name: str, shape: Shape, why: str, features: tuple[str, ...], when: str
) -> Member:
    return Member(owner, name, shape, why, features, when, "Keras 3")


_FIT: Final = (
    "x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split",
    "validation_data", "shuffle", "class_weight", "sample_weight", "initial_epoch",
    "steps_per_epoch", "validation_steps", "validation_batch_size", "validation_freq",
)  # fmt: skip
#: By what they are called here.
_EXTENDED: Final = {
    "reduce_per_replica": _keras(
        _MODULE,
        "reduce_per_replica",
        Takes("values", "strategy", "reduction"),
        "Logs of several processes are scalars: they have no axis to reduce.",
        _LOOPS,
        AT_FIRST_USE,
    ),
    "_maybe_symbolic_build": _keras(
        _TRAINER,
        "_maybe_symbolic_build",
        Takes("self", "iterator", "data_batch"),
        "A model is built by the dataset's shapes; Keras fails to average a batch.",
        _LOOPS,
        AT_FIRST_USE,
    ),
    "_make_function": _keras(
        _TRAINER,
        "_make_function",
        Takes("self", "step_function"),
        "XLA cannot compile collectives on CPUs.",
        _LOOPS,
        AT_FIRST_USE,
    ),
    "predict": _keras(
        _TRAINER,
        "predict",
        Takes("self", "x", "batch_size", "verbose", "steps", "callbacks"),
        "Predictions keep the order of the input only if it is sharded by batches.",
        _LOOPS,
        AT_FIRST_USE,
    ),
    "fit": _keras(
        _TRAINER,
        "fit",
        Takes("self", *_FIT),
        "Processes that shuffle without a seed are warned of.",
        _LOOPS,
        AT_FIRST_USE,
    ),
    "capture_call_time_value": Member(
        "tensorflow.python.framework.func_graph:FuncGraph",
        "capture_call_time_value",
        Takes("self", "closure", "spec", "key", "default_value", "placeholder"),
        "Conditionals do not pass on the keys of collectives that a function in a branch has.",
        _LOOPS,
        AT_FIRST_USE,
    ),
    "on_train_begin": _keras(
        "keras.src.callbacks.callback_list:CallbackList",
        "on_train_begin",
        Takes("self", "logs"),
        "All processes go on from what the chief has restored.",
        _FILES,
        AT_FIRST_USE,
    ),
    **{
        name: _keras(
            _BACKUP,
            method,
            Takes("self", *more),
            "The chief alone has files.",
            _FILES,
            AT_FIRST_USE,
        )
        for name, method, *more in (
            ("load_backup", "on_train_begin", "logs"),
            ("save_backup", "_save_model"),
            ("remove_backup", "on_train_end", "logs"),
        )
    },
    "save_checkpoint": _keras(
        "keras.src.callbacks.model_checkpoint:ModelCheckpoint",
        "_save_model",
        Takes("self", "epoch", "batch", "logs"),
        "The chief alone has files.",
        _FILES,
        AT_FIRST_USE,
    ),
}
MEMBERS = (
    *_EXTENDED.values(),
    Member(
        _STRATEGY,
        "_in_multi_worker_mode",
        Takes("self"),
        "says whether the program is one of a cluster",
        (*_LOOPS, *_FILES),
    ),
    Member(
        "tensorflow.python.framework.func_graph:FuncGraph",
        "is_control_flow_graph",
        Stored(),
        "says whether a graph is a branch or a loop's body",
        _LOOPS,
    ),
    Member(
        "tensorflow.python.eager.context",
        "global_seed",
        Takes(),
        "says whether the program has set a seed",
        _LOOPS,
    ),
    Member(
        "keras.src.trainers.trainer:Trainer",
        "_initial_epoch",
        Stored(),
        "is the epoch to begin with that a callback has restored",
        _FILES,
        versions="Keras 3",
    ),
)


def extend(methods: Mapping[str, Callable[..., Any]]) -> None:
    """Extend members of the table above.

    Args:
      methods: by name, what gets the present function, and then what that gets.
    """
    for name, method in methods.items():
        _extend(_EXTENDED[name], method)


def _extend(member: Member, method: Callable[..., Any]) -> None:
    before = getattr(member.resolve(), member.name)

    def extended(*args: Any, **kwargs: Any) -> Any:
        return method(before, *args, **kwargs)

    extended.__doc__ = before.__doc__
    extended.__name__ = member.name
    extended.__wrapped__ = before  # type: ignore[attr-defined]
    monkey_patch.replace(member, extended)


def are_several(strategy: Any) -> bool:
    """Return whether a strategy is `MultiWorkerMirroredStrategy` of a cluster, also of one task."""
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.extended._in_multi_worker_mode()
    )


def graph_of_function(graph: Any) -> Any:
    """Return the graph of the function that has a branch or a loop's body; else the graph."""
    while graph.is_control_flow_graph:
        graph = graph.outer_graph
    return graph


def is_seeded() -> bool:
    """Return whether the program has set TensorFlow's seed."""
    from tensorflow.python.eager import context

    return context.global_seed() is not None


def first_epoch(model: Any) -> int | None:
    """Return the epoch that a callback has restored; None if there is none."""
    epoch = model._initial_epoch
    return None if epoch is None else int(epoch)


def set_first_epoch(model: Any, epoch: int | None) -> None:
    """Set the epoch that `fit` begins with."""
    model._initial_epoch = epoch
