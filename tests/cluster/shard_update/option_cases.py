# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training with `shard_weight_update` and its options, and who reads the state in between."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class ShardUpdateOptionCases:
    """Cases of `collectives.cases.Member`: updates sharded by the option."""

    rank: int
    ranks: int

    def trained(
        self,
        library: str = "keras",
        optimizer: str = "Adam",
        on: bool = True,
        steps: int = 4,
        reads: Sequence[str] = (),
        restored: str = "",
        compiled: bool = False,
        always: bool = True,
        group_size: int = 0,
        **args: Any,
    ) -> dict[str, Any]:
        """Trains a model of uneven layers, with the option on or off.

        Args:
          library: "keras" or "tf_keras".
          optimizer: name of the class.
          on: whether the option is.
          steps: of training.
          reads: what is done between the steps, names of methods of `_Trained`.
          restored: a checkpoint to begin with.
          compiled: whether the update is compiled, however small its variables are.
          always: whether it is sharded however small they are.
          group_size: how many replicas share one copy of the state; 0: all.
          args: of the optimizer.

        Returns:
          Digests of the weights and of the optimizer's variables after training, the losses, and
          what the reads gave.
        """
        from tf_fuse.fuse_update.encode import xla

        xla.MIN_ELEMENTS = 2
        tf.config.optimizer.set_experimental_options(
            {
                "shard_weight_update": on,
                "shard_weight_update_always": always,
                "compile_weight_update": compiled,
                "shard_weight_update_group_size": group_size,
            }
        )
        strategy = self._strategy = getattr(self, "_strategy", None) or (
            tf.distribute.MultiWorkerMirroredStrategy()
        )
        trained = self._trained = _Trained(self, strategy, library, optimizer, args)
        if restored:
            trained.checkpoint().read(restored).assert_consumed()
        return self.trained_on(steps, reads)

    def trained_on(self, steps: int, reads: Sequence[str] = (), saved: str = "") -> dict[str, Any]:
        """Goes on with the training of `trained`.

        Args:
          steps: how many more.
          reads: as of `trained`.
          saved: where rank 0 then saves a checkpoint, alone; none if empty.
        """
        trained = self._trained
        seen = []
        for step in range(steps):
            trained.step()
            seen += [getattr(trained, read)(step) for read in reads]
        held = trained.held()
        if saved and self.rank == 0:
            trained.checkpoint().write(saved)
        return {
            "losses": trained.losses,
            "weights": trained.digest(trained.model.trainable_variables),
            "held": held,
            "slots": trained.digest(trained.slots()),
            "values": [v.numpy().tolist() for v in trained.model.trainable_variables],
            "compiled": trained.compiled(),
            "seen": seen,
        }

    def with_two_strategies(self, on: bool, gather: str) -> list[dict[str, Any]]:
        """Trains under a strategy, under another one, then under both in turn, and reads between.

        Args:
          on: as of `trained`.
          gather: the option `shard_weight_update_gather`.

        Returns:
          What `trained_on` does, for both; and what both held before these reads.
        """
        tf.config.optimizer.set_experimental_options({"shard_weight_update_gather": gather})
        both, results = [], []
        for _ in range(2):
            self._strategy = None
            self.trained(on=on, steps=2)
            both.append(self._trained)
        for _ in range(2):
            for trained in both:
                trained.step()
        held = self._trained.held()[-2:]
        for trained in both:
            self._trained = trained
            results.append(self.trained_on(2, reads=["one_reads"]) | {"held": held})
        return results

    def only_steps(self, steps: int) -> list[str]:
        """Goes on with the training of `trained`; its losses."""
        for _ in range(steps):
            self._trained.step()
        return self._trained.losses

    def only_reads(self) -> str:
        """The variables of the optimizer of `trained`."""
        return self._trained.everyone_reads(0)

    def allocated(self) -> int:
        """Bytes of the values of the optimizer's variables and their shards, as TensorFlow has.

        A variable without a value has none; to look at it is not to read it.
        """
        return self._trained.allocated()

    def badly_planned(self) -> dict[str, Any]:
        """Trains as `trained`, while planning raises."""
        from tf_fuse.shard_update import function_cache as updates

        def bad(*args: Any, **more: Any) -> Any:
            raise ValueError("badly planned on purpose")

        plan_update, updates.plan_update = updates.plan_update, bad
        try:
            return self.trained()
        finally:
            updates.plan_update = plan_update

    def wrongly_sharded(self) -> dict[str, Any]:
        """Trains as `trained`, while the verifier finds something wrong with each function."""
        from tf_fuse.shard_update import function_cache as updates

        check, updates.check_update = updates.check_update, lambda *args: "it is wrong on purpose"
        try:
            return self.trained() | {"decided": self.decided()[-1]}
        finally:
            updates.check_update = check

    def with_python(self) -> list[tuple[str | None, str]]:
        """Why a step is left alone that runs Python code in a branch."""
        from tensorflow.python.eager import context

        self.trained(steps=1)
        trained, seen = self._trained, []

        @tf.function
        def step(x: Any, y: Any) -> Any:
            loss = trained.strategy.run(trained._replica, args=(x, y))
            if tf.reduce_sum(x) < 1e9:
                tf.py_function(lambda: seen.append(trained.slots()[2].numpy()), [], [])
            return loss

        step(trained.x, trained.y)
        assert len(seen) == 1
        decisions = context.context()._tf_fuse_updates.decisions
        return [(decision.reason, decision.detail) for decision in decisions[-1:]]

    def report(self) -> dict[str, Any]:
        """The report, after what is logged for people was printed from it."""
        import json

        import tf_fuse

        report = tf_fuse.weight_update_report()
        assert json.loads(json.dumps(report)) == report
        tf_fuse.print_weight_update_report(report)
        return report

    def decided(self) -> list[tuple[str, list[str]]]:
        """Of each function with an all-reduce, why it was left alone, and gradients of it."""
        from tensorflow.python.eager import context

        return [
            (
                decision.reason or "",
                sorted(
                    {f.reason or "" for bucket in decision.plan.buckets for f in bucket.clusters}
                )
                if decision.plan
                else [],
            )
            for decision in context.context()._tf_fuse_updates.decisions
        ]


class _Trained:
    """A model in training."""

    def __init__(self, member: Any, strategy: Any, library: str, optimizer: str, args: Any):

        keras = importlib.import_module(library)
        self.strategy, self.losses = strategy, []
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layers = [keras.layers.Dense(n, activation="tanh") for n in (37, 5)]
            self.model = keras.Sequential([keras.Input([10]), *layers, keras.layers.Dense(1)])
            self.optimizer = getattr(keras.optimizers, optimizer)(0.05, **args)
            self.optimizer.build(self.model.trainable_variables)
        rng = np.random.default_rng(member.rank)
        self.x = tf.constant(rng.standard_normal([16, 10]), tf.float32)
        self.y = tf.constant(rng.standard_normal([16, 1]), tf.float32)
        self.rank = member.rank
        self.run = tf.function(lambda x, y: strategy.run(self._replica, args=(x, y)))

    def _replica(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
        weights = self.model.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    def step(self) -> None:
        """Trains once."""
        self.losses.append(float(self.run(self.x, self.y)).hex())

    def slots(self) -> list[Any]:
        """All variables of the optimizer."""
        variables = self.optimizer.variables
        return list(variables() if callable(variables) else variables)

    def digest(self, variables: Sequence[Any]) -> str:
        """Of the bits of variables."""
        bits = b"".join(np.asarray(v.numpy()).tobytes() for v in variables)
        return hashlib.sha256(bits).hexdigest()

    def held(self) -> list[tuple[int, int, bool, int]]:
        """Of each shard group the bytes here, those of all, whether in shards, and steps."""
        from tensorflow.python.eager import context

        updates = getattr(context.context(), "_tf_fuse_updates", None)
        shard_groups = [] if updates is None else updates.shard_groups()
        return [(*b.bytes(), b.is_sharded, b.version) for b in shard_groups]

    def checkpoint(self) -> Any:
        """Of everything."""
        slots = {f"slot_{i}": v for i, v in enumerate(self.slots())}
        weights = {f"weight_{i}": v for i, v in enumerate(self.model.trainable_variables)}
        by_name = {name: getattr(v, "_value", v) for name, v in sorted((slots | weights).items())}
        return tf.train.Checkpoint(**by_name)

    def allocated(self) -> int:
        """See `ShardUpdateOptionCases.allocated`."""
        from tensorflow.python.eager import context

        total = 0
        mine = set()
        for variable in self.slots():
            value = getattr(variable, "_value", variable)
            handle = value._values[0].__dict__["_handle"]
            mine.add(id(handle))
            if tf.raw_ops.VarIsInitializedOp(resource=handle):
                total += int(np.prod(value.shape)) * value.dtype.size
        updates = getattr(context.context(), "_tf_fuse_updates", None)
        shard_groups = [] if updates is None else updates.shard_groups()
        for shard_group in shard_groups:
            if mine & {id(handle) for handle in shard_group.handles()}:
                total += shard_group.allocated()
        return total

    def assigns(self, step: int) -> str:
        """Assigns something else to the optimizer's variables, as all ranks do."""
        for variable in self.slots()[2:]:
            variable.assign(variable * 0.5)
        return ""

    def by_function(self, step: int) -> str:
        """What another function reads of the optimizer's variables."""
        if not hasattr(self, "reader"):
            variables = self.slots()
            self.reader = tf.function(lambda: [v + 0 for v in variables], autograph=False)
        return hashlib.sha256(b"".join(v.numpy().tobytes() for v in self.reader())).hexdigest()

    def other_batch(self, step: int) -> str:
        """Trains once with fewer examples, by another trace of the step."""
        loss = float(self.run(self.x[: 4 + step], self.y[: 4 + step])).hex()
        return loss

    def own_batch(self, step: int) -> str:
        """Trains once with another number of examples on each rank: some trace anew."""
        rows = 16 - 3 * self.rank
        return float(self.run(self.x[:rows], self.y[:rows])).hex()

    def faster(self, step: int) -> str:
        """Another learning rate."""
        self.optimizer.learning_rate = 0.01 / (1 + step)
        return ""

    def compiled(self) -> list[tuple[int, list[str]]]:
        """Of each function, how many kernels it has, and why assignments are left alone."""
        from tensorflow.python.eager import context

        compiler = getattr(context.context(), "_tf_fuse_compiler", None)
        decisions = [] if compiler is None else compiler.decisions
        return [
            (len(d.outline.clusters), sorted({left.reason for left in d.outline.left}))
            for d in decisions
            if d.outline.clusters
        ]

    def everyone_reads(self, step: int) -> str:
        """The optimizer's variables, on all ranks."""
        return self.digest(self.slots())

    def one_reads(self, step: int) -> str:
        """The optimizer's variables, on one rank, another one each time."""
        return self.digest(self.slots()) if step % 2 == self.rank % 2 else ""
