# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend what Keras 3 does wrong if several processes train together, and its files."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Exists, Member, Stored, Takes, Versions

_log = logging.getLogger("tf_fuse")
_MODULE = "keras.src.backend.tensorflow.trainer"
_TRAINER = f"{_MODULE}:TensorFlowTrainer"
_STRATEGY = (
    "tensorflow.python.distribute.collective_all_reduce_strategy:CollectiveAllReduceExtended"
)
_CALLBACKS = "keras.src.callbacks.callback_list:CallbackList"
_CHECKPOINT = "keras.src.callbacks.model_checkpoint:ModelCheckpoint"
_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"
_LOOPS = (feature_names.KERAS_PROCESSES,)
_FILES = (feature_names.KERAS_FILES,)
_MENDED = Versions("Keras", (3, 12), (3, 15))


def _member(owner: str, name: str, why: str, features: tuple[str, ...], *takes: str) -> Member:
    shape = Takes(*takes)
    return Member(owner, name, shape, why, features, AT_FIRST_USE, str(_MENDED), _MENDED)


#: By what they are called here.
_EXTENDED: Final = {
    "reduce_per_replica": _member(
        _MODULE,
        "reduce_per_replica",
        "Logs of several processes are scalars: they have no axis to reduce.",
        _LOOPS,
        "values",
        "strategy",
        "reduction",
    ),
    "reduce_values": _member(
        "keras.src.losses.loss",
        "reduce_values",
        "A process that has no row of a batch has a loss of 0; Keras's becomes NaN.",
        _LOOPS,
        "values",
        "sample_weight",
        "reduction",
    ),
    "maybe_symbolic_build": _member(
        _TRAINER,
        "_maybe_symbolic_build",
        "A model is built by the dataset's shapes; Keras fails to average a batch.",
        _LOOPS,
        "self",
        "iterator",
        "data_batch",
    ),
    "make_function": _member(
        _TRAINER,
        "_make_function",
        "A step begins only if there is a batch; XLA cannot compile collectives on CPUs.",
        _LOOPS,
        "self",
        "step_function",
    ),
    "predict": _member(
        _TRAINER,
        "predict",
        "Predictions keep the order of the input only if it is sharded by batches.",
        _LOOPS,
        "self",
        "x",
        "batch_size",
        "verbose",
        "steps",
        "callbacks",
    ),
    "__init__": _member(
        f"{_MODULE}:TFEpochIterator",
        "__init__",
        "Batches of a generator are copied: steps would write over the program's arrays.",
        _LOOPS,
        "self",
        "distribute_strategy",
        "args",
        "kwargs",
    ),
    "on_train_begin": _member(
        _CALLBACKS,
        "on_train_begin",
        "All processes go on from what the chief has restored.",
        _FILES,
        "self",
        "logs",
    ),
    **{
        name: _member(owner, method, "The chief alone has files.", _FILES, "self", *more)
        for name, owner, method, *more in (
            ("load_backup", _BACKUP, "on_train_begin", "logs"),
            ("save_backup", _BACKUP, "_save_model"),
            ("remove_backup", _BACKUP, "on_train_end", "logs"),
            ("save_checkpoint", _CHECKPOINT, "_save_model", "epoch", "batch", "logs"),
        )
    },
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
        "tensorflow.python.distribute.input_lib:DistributedDataset",
        "_original_dataset",
        Stored(),
        "says whether a strategy slices the batches of a distributed dataset",
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
        "keras.src.trainers.data_adapters.generator_data_adapter:GeneratorDataAdapter",
        "_first_batches",
        Stored(),
        "are batches that a generator has yielded, and that are trained on later",
        _LOOPS,
        versions="Keras 3",
    ),
    Member(
        "keras.src.trainers.epoch_iterator:EpochIterator",
        "data_adapter",
        Stored(),
        "holds the data of an epoch",
        _LOOPS,
        versions="Keras 3",
    ),
    Member(
        "keras.src.trainers.data_adapters.data_adapter:DataAdapter",
        "get_tf_dataset",
        Takes("self"),
        "knows the shapes of batches",
        _LOOPS,
        versions="Keras 3",
    ),
    Member(
        _CALLBACKS,
        "callbacks",
        Stored(),
        "says whether a callback of the chief restores values",
        _FILES,
        versions="Keras 3",
    ),
    Member(_CALLBACKS, "model", Exists(), "is what is trained", _FILES, versions="Keras 3"),
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
        monkey_patch.extend(_EXTENDED[name], method)


def warn_if_untried() -> None:
    """Warn, once for a version of Keras, if the mends above were not tried with it.

    They are made there, too: a Keras that looks the same most probably has the same errors.
    """
    _warn_if_untried(getattr(sys.modules.get("keras"), "__version__", "of unknown version"))


@functools.cache
def _warn_if_untried(version: str) -> None:
    for mended in {one.mended for one in _EXTENDED.values() if one.mended is not None}:
        if not mended.include(version):
            _log.warning(
                "fit in several processes was not tried with Keras %s: tf_fuse mends the errors of "
                "%s that docs/keras.md lists. If something is wrong, install one of those versions",
                version,
                mended,
            )


def are_several(strategy: Any) -> bool:
    """Return whether a strategy is `MultiWorkerMirroredStrategy` of a cluster, also of one task."""
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.extended._in_multi_worker_mode()
    )


def is_sliced(data: Any) -> bool:
    """Return whether `experimental_distribute_dataset` has made the data of a dataset."""
    return hasattr(data, "_original_dataset")


def first_batches(epochs: Any) -> list[Any]:
    """Return batches that Keras has read to know their shapes; none if it need not read any."""
    return list(getattr(epochs.data_adapter, "_first_batches", ()))


def spec_of_data(epochs: Any) -> Any:
    """Return the spec of the batches that Keras makes of the data of an `EpochIterator`."""
    return epochs.data_adapter.get_tf_dataset().element_spec


def model_of(callbacks: Any) -> Any:
    """Return the model of a `CallbackList`."""
    return callbacks.model


def have_backup(callbacks: Any) -> bool:
    """Return whether one of a `CallbackList` is `BackupAndRestore`."""
    import keras

    return any(isinstance(one, keras.callbacks.BackupAndRestore) for one in callbacks.callbacks)


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
