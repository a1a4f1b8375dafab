# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training with weights that are gathered right before their first use."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tests.cluster.shard_update.option_cases import _Trained


class ShardUpdateGatherCases:
    """Cases of `collectives.cases.Member`; what goes on with `trained` goes on with `gathered`."""

    rank: int
    ranks: int

    def gathered(
        self,
        optimizer: str = "Adam",
        on: bool = True,
        gather: str = "first_use",
        narrow: bool = False,
        policy: str = "float32",
        steps: int = 4,
        reads: Sequence[str] = (),
        restored: str = "",
        compiled: bool = False,
        batch: int = 1 << 20,
        library: str = "keras",
        **args: Any,
    ) -> dict[str, Any]:
        """Trains as `trained`.

        Args:
          optimizer: name of the class; "legacy.Adam" and such are of `tf_keras` alone.
          on: whether updates are sharded.
          gather: "end" or "first_use".
          narrow: whether weights may travel in a narrower type.
          policy: of the model's types.
          steps: of training.
          reads: what is done between the steps, names of methods of `_Gathered`.
          restored: a checkpoint to begin with.
          compiled: whether the update is compiled, however small its variables are.
          batch: elements of what is gathered at once.
          library: "keras" or "tf_keras".
          args: of the optimizer.

        Returns:
          As `trained`.
        """
        import keras

        from tf_fuse.fuse_update.encode import xla
        from tf_fuse.shard_update.analysis import gather_placement

        xla.MIN_ELEMENTS = 2
        gather_placement._BATCH_ELEMENTS = batch
        self.options(on=on, gather=gather, narrow=narrow, compiled=compiled)
        strategy = self._strategy = getattr(self, "_strategy", None) or (
            tf.distribute.MultiWorkerMirroredStrategy()
        )
        keras.config.set_dtype_policy(policy)
        try:
            trained = self._trained = _Gathered(self, strategy, library, optimizer, args)
        finally:
            keras.config.set_dtype_policy("float32")
        if restored:
            trained.checkpoint().read(restored).assert_consumed()
        result: dict[str, Any] = self.trained_on(steps, reads)  # type: ignore[attr-defined]
        return result

    def options(
        self, on: bool = True, gather: str = "end", narrow: bool = False, compiled: bool = False
    ) -> None:
        """Sets the options; see `gathered`."""
        tf.config.optimizer.set_experimental_options(
            {
                "shard_weight_update": on,
                "shard_weight_update_always": True,
                "shard_weight_update_gather": gather,
                "shard_weight_update_gather_bfloat16": narrow,
                "compile_weight_update": compiled,
            }
        )

    def received(self, steps: int) -> int:
        """Bytes that collectives bring to this rank in some more steps."""
        ways = [f"collective_bytes_{way}" for way in ("shm", "tcp", "grpc", "stock")]
        before = self.counters()  # type: ignore[attr-defined]
        for _ in range(steps):
            self._trained.step()
        after = self.counters()  # type: ignore[attr-defined]
        return sum(after[way] - before[way] for way in ways)

    def reads_weights(self) -> str:
        """The weights of `gathered`."""
        return self._trained.weights(0)

    def bounded(
        self, dtype: str, sizes: Sequence[int], bounds: Sequence[int], given: Sequence[int] = ()
    ) -> list[list[float]]:
        """All-gathers counts from 0, of tensors that are sharded at given places.

        Args:
          dtype: of the tensors.
          sizes: of them.
          bounds: of each, where the ranks' parts begin, and where the last one ends.
          given: what the operation gets instead, if anything.
        """
        from tf_fuse import _native

        shards = []
        for i, size in enumerate(sizes):
            first = i * (self.ranks + 1) + self.rank
            whole = tf.cast(tf.range(size), dtype)
            shards.append(whole[bounds[first] : bounds[first + 1]])
        keys = {"group_size": self.ranks, "group_key": 9100 + self.ranks}
        key = self._key()  # type: ignore[attr-defined]
        with tf.device(self.device):  # type: ignore[attr-defined]
            outputs = _native.load().tf_fuse_all_gather(
                shards=shards,
                shapes=[tf.constant([size], tf.int64) for size in sizes],
                bounds=list(given or bounds),
                instance_key=key,
                **keys,
            )
        return [[float(x) for x in output.numpy()] for output in outputs]

    def unwritten(self, steps: int) -> list[list[bool]]:
        """Of some steps, whether weights have values of their own behind them."""
        found = []
        for _ in range(steps):
            self._trained.step()
            handles = [
                variable._value._values[0].__dict__["_handle"]
                for variable in self._trained.model.trainable_variables
            ]
            found.append([bool(tf.raw_ops.VarIsInitializedOp(resource=h)) for h in handles])
        return found


class _Gathered(_Trained):
    """A model in training, of any types, and what is done between steps."""

    def __init__(self, member: Any, strategy: Any, library: str, optimizer: str, args: Any):
        """As of `_Trained`; with a legacy optimizer too."""
        legacy, _, name = optimizer.rpartition(".")
        if not legacy:
            super().__init__(member, strategy, library, optimizer, args)
            return
        super().__init__(member, strategy, library, "SGD", {})
        optimizers = importlib.import_module(library).optimizers.legacy
        with strategy.scope():
            self.optimizer = getattr(optimizers, name)(0.05, **args)
            self.optimizer._create_all_weights(self.model.trainable_variables)

    def _replica(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            prediction = tf.cast(self.model(x, training=True), tf.float32)
            loss = tf.reduce_mean((prediction - y) ** 2)
        weights = self.model.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    def weights(self, step: int) -> str:
        """The weights, on all ranks."""
        return self.digest(self.model.trainable_variables)

    def one_weights(self, step: int) -> str:
        """The weights, on one rank, another one each time."""
        return self.weights(step) if step % 2 == self.rank % 2 else ""

    def halves(self, step: int) -> str:
        """Assigns something else to the weights, as all ranks do."""
        for variable in self.model.trainable_variables[step % 2 :: 2]:
            variable.assign(variable * 0.5)
        return ""

    def evaluates(self, step: int) -> str:
        """What another function makes of the weights."""
        if not hasattr(self, "evaluate"):
            self.evaluate = tf.function(lambda x: tf.reduce_sum(self.model(x)), autograph=False)
        return float(self.evaluate(self.x)).hex()

    def changes(self, step: int) -> str:
        """Let the steps that follow gather weights otherwise."""
        options = tf.config.optimizer.get_experimental_options()
        others = {"end": "first_use", "first_use": "end"}
        gather = others[options["shard_weight_update_gather"]]
        tf.config.optimizer.set_experimental_options({"shard_weight_update_gather": gather})
        strategy = self.strategy
        self.run = tf.function(lambda x, y: strategy.run(self._replica, args=(x, y)))
        return ""

    def switches(self, step: int) -> str:
        """Switches sharding off for a step and on again."""
        options = tf.config.optimizer.get_experimental_options()
        is_on = options["shard_weight_update"]
        tf.config.optimizer.set_experimental_options({"shard_weight_update": False})
        loss = float(self.run(self.x, self.y)).hex()
        tf.config.optimizer.set_experimental_options({"shard_weight_update": is_on})
        return loss
