# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A worker of MultiWorkerMirroredStrategy for `rank.py`.

A Keras 3 model and optimizer in a loop of one's own: Keras 3's `fit` does not work under this
strategy. With the protocol `grpc` this never imports `tf_fuse`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf

from benchmarks.collectives import rank as base
from benchmarks.shard_update import models
from benchmarks.shard_update.keras_models import build_model, loss_of, make_optimizer

_STOCK_PROTOCOL = "grpc"


class TensorFlow:
    """A replica."""

    def __init__(self, spec: Mapping[str, Any]):
        """Join the other workers; return when all are there.

        Args:
          spec: see `shard_update_rank.make_trainer`.

        Raises:
          UnsupportedError: the tf_fuse that is installed lacks one of the options.
          PortTakenError: another process has the port.
        """
        self._spec, self._rank = spec, spec["rank"]
        self._ranks = len(spec["addresses"])
        self._ours = spec["protocol"] != _STOCK_PROTOCOL
        if self._ours:
            _load_ours(spec["options"])
        self._strategy = _join(spec["rank"], spec["addresses"], spec["protocol"])

    def build(self) -> None:
        """See `shard_update_rank.Trainer`."""
        spec = self._spec
        name, sizes = spec["model"], spec["sizes"]
        with self._strategy.scope():
            model, weights = build_model(name, sizes)
            optimizer = make_optimizer(spec["optimizer"], spec["learning_rate"])
            optimizer.build(weights)
        values = models.first_values(name, sizes)
        if [tuple(w.shape) for w in weights] != [v.shape for v in values]:
            raise base.WrongValueError(
                f"the variables of {name} are {[(w.path, tuple(w.shape)) for w in weights]}, "
                f"expected the shapes {[v.shape for v in values]}"
            )
        for weight, value in zip(weights, values, strict=True):
            weight.assign(value)
        self._optimizer = optimizer
        self._batches = [
            tuple(tf.constant(part) for part in batch)
            for batch in models.batches(name, sizes, self._rank)
        ]
        self._step, self._gradients = self._functions(name, model, weights, optimizer)

    def _functions(
        self, name: str, model: keras.Model, weights: list[Any], optimizer: Any
    ) -> tuple[Any, Any]:
        def local(*batch: Any) -> tuple[Any, list[Any]]:
            with tf.GradientTape() as tape:
                loss = loss_of(name, model, batch)
                # Keras sums what the replicas have.
                part = loss / self._ranks
            gradients = tape.gradient(part, [weight.value for weight in weights])
            # Dense, as where XLA compiles the whole step: those of tables are rows otherwise.
            return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

        def step(*batch: Any) -> Any:
            loss, gradients = local(*batch)
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return loss

        def reduced(*batch: Any) -> Any:
            # As Keras does it in apply_gradients.
            gradients = local(*batch)[1]
            replica = tf.distribute.get_replica_context()
            with tf.control_dependencies(replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)):
                return tf.zeros([])

        run = self._strategy.run
        return (
            tf.function(lambda *batch: run(step, batch), autograph=False),
            tf.function(lambda *batch: run(reduced, batch), autograph=False),
        )

    def step(self, at: int) -> Any:
        """See `shard_update_rank.Trainer`."""
        return self._step(*self._batches[at % len(self._batches)])

    def gradients(self, at: int) -> None:
        """See `shard_update_rank.Trainer`."""
        self._gradients(*self._batches[at % len(self._batches)])

    def loss(self, result: Any) -> float:
        """See `shard_update_rank.Trainer`."""
        return float(result)

    def state_bytes(self) -> int:
        """See `shard_update_rank.Trainer`."""
        return state_bytes(self._strategy, self._optimizer)

    def report(self) -> dict[str, Any] | None:
        """See `shard_update_rank.Trainer`."""
        if not self._ours:
            return None
        import tf_fuse

        return tf_fuse.weight_update_report()

    def counters(self) -> dict[str, int]:
        """Return the counters of our collectives; stock TensorFlow counts nothing."""
        if not self._ours:
            return {}
        import tf_fuse

        return {
            name: count
            for name, count in sorted(tf_fuse.metrics().items())
            if name.startswith("collective_") and isinstance(count, int)
        }


def state_bytes(strategy: Any, optimizer: Any) -> int:
    """Bytes of the buffers that this process has for an optimizer's variables.

    They are read by their handles: nothing on the way makes a whole value of a part.
    """
    from tensorflow.python.eager import context

    held = 0
    for variable in optimizer.variables:
        for part in strategy.experimental_local_results(variable.value):
            handle = part.__dict__["_handle"]
            if tf.raw_ops.VarIsInitializedOp(resource=handle):
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=part.dtype)
                held += value.dtype.size * int(tf.size(value))
    updates = getattr(context.context(), "_tf_fuse_updates", None)
    if updates is not None:
        held += sum(group.allocated(weights=False) for group in updates.shard_groups())
    return held


def _load_ours(options: Mapping[str, Any]) -> None:
    """Import tf_fuse, and set options of its; one that it lacks would be dropped unseen."""
    import tf_fuse
    from tf_fuse.options import OPTIONS

    if lacking := sorted(set(options) - set(OPTIONS)):
        raise base.UnsupportedError(
            f"the tf_fuse in {tf_fuse.__path__[0]} has no option {', '.join(lacking)}"
        )
    if options:
        try:
            tf.config.optimizer.set_experimental_options(dict(options))
        except (TypeError, ValueError) as e:
            raise base.UnsupportedError(f"the options {dict(options)} are refused: {e}") from e


def _join(rank: int, addresses: list[str], protocol: str) -> Any:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}),
        task_type="worker",
        task_id=rank,
        rpc_layer=protocol,
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except tf.errors.UnknownError as e:
        if "Could not start gRPC server" not in str(e):
            raise
        raise base.PortTakenError(f"{addresses[rank]}: {e}") from e
