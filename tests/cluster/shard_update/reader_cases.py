# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who reads, saves, restores or assigns the optimizer's state while the option shards updates.

Each case does the same with the option on and off, and returns digests that must be equal. Nothing
here imports tf_fuse: ranks without the plugin run these cases as well.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import itertools
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.collectives.ranks import BEGUN
from tests.cluster.shard_update.readers import make_readers, tf_context


class ShardUpdateReaderCases:
    """Cases of `collectives.cases.Member`: readers of what is in shards."""

    rank: int
    ranks: int

    def between_steps(
        self,
        folder: str,
        readers: Sequence[str],
        on: bool,
        library: str = "keras",
        optimizer: str = "Adam",
        schedule: bool = False,
        restored: str = "",
        **args: Any,
    ) -> dict[str, Any]:
        """Trains a step for each reader, and has it read.

        Args:
          folder: where they may write.
          readers: names of methods of `_Readers`.
          on: whether the option is.
          library: "keras" or "tf_keras".
          optimizer: name of the class.
          schedule: whether its learning rate follows a schedule.
          restored: a checkpoint to begin with.
          args: of the optimizer.

        Returns:
          By reader what it gave; and `losses`, `weights`, `slots` at the end, and `sharded`: how
          many variables were in shards before each read, and in the middle of some.
        """
        self._switch(on)
        if schedule:
            keras = importlib.import_module(library)
            decay = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
            args["learning_rate"] = decay
        trained = self._reader = make_readers(self, library, optimizer, args)
        if restored:
            trained.checkpoint().read(restored).assert_consumed()
        trained.folder = Path(folder) / ("on" if on else "off")
        trained.folder.mkdir(parents=True, exist_ok=True)
        told: dict[str, Any] = {"sharded": trained.were_sharded}
        for reader in readers:
            trained.step()
            trained.look()
            told[reader] = getattr(trained, reader)()
        return told | trained.state()

    def _switch(self, on: bool) -> None:
        tf.config.optimizer.set_experimental_options(
            {"shard_weight_update": on, "shard_weight_update_always": True}
        )

    def the_strategy(self) -> Any:
        """One for all cases: making one restarts what the collectives know."""
        if getattr(self, "_strategy", None) is None:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return self._strategy

    def goes_on(self, steps: int, on: bool | None = None, saved: str = "") -> dict[str, Any]:
        """Goes on with the training of `between_steps`.

        Args:
          steps: how many more.
          on: whether the option is then; None: as before.
          saved: where rank 0 then saves a checkpoint, alone; none if empty.
        """
        trained = self._reader
        if on is not None:
            self._switch(on)
        for _ in range(steps):
            trained.step()
        sharded = trained.count_sharded()
        if saved and self.rank == 0:
            trained.checkpoint().write(saved)
        return {"sharded": sharded, **trained.state()}

    def makes_steps(self, steps: int) -> None:
        """Goes on with the training of `between_steps`, and reads nothing."""
        for _ in range(steps):
            self._reader.step()

    def steps_without_end(self) -> None:
        """Goes on until a step fails; says when it is in the middle of that."""
        for done in itertools.count():
            if done == 3:
                print(BEGUN, file=sys.stderr, flush=True)
            self._reader.step()

    def imports_the_plugin(self) -> list[tuple[str, str]]:
        """Imports tf_fuse in the middle of training, and goes on with that, and with another model.

        Returns:
          Of each function that trains, why it is not sharded.
        """
        import tf_fuse

        self._switch(True)
        self._reader.step()
        self._reader = make_readers(self, "keras", "Adam", {})
        self._reader.step()
        functions = tf_fuse.weight_update_report()["functions"]
        return [(function["reason"], function["detail"]) for function in functions]

    def put_aside(self) -> None:
        """Keeps what `between_steps` trains, which may then train another model."""
        self._aside = self._reader

    def reads_all(self, put_aside: bool = False) -> dict[str, Any]:
        """The state of `between_steps`, or of what was put aside."""
        return (self._aside if put_aside else self._reader).state()

    def managed(self, folder: str) -> list[str]:
        """Saves a checkpoint by a manager, if that goes well.

        Args:
          folder: of the checkpoints.

        Returns:
          The error's class and text, if it does not; and the number of the latest checkpoint.
        """
        if not hasattr(self, "_saved"):
            self._saved = self._reader.checkpoint()
        manager = tf.train.CheckpointManager(self._saved, folder, 5)
        told = []
        try:
            manager.save()
        except tf.errors.OpError as error:
            told = [type(error).__name__, str(error)]
        return [*told, (tf.train.latest_checkpoint(folder) or "").rpartition("-")[2]]

    def read_by_a_thread(self, on: bool, steps: int) -> dict[str, Any]:
        """Trains while another thread reads and assigns what is in shards.

        Returns:
          As `goes_on`, and `read`: by variable, the digests of the values that the thread read;
          `after`: by variable, those behind each step, if the option is off.
        """
        self._switch(on)
        trained = self._reader = make_readers(self, "keras", "Adam", {})
        slots = trained.slots()[2:]
        read: list[set[str]] = [set() for _ in slots]
        after = [[trained.digest([slot])] for slot in slots]
        total = tf.function(lambda: [slot + 0 for slot in slots], autograph=False)
        errors: list[str] = []
        ended = threading.Event()

        def reads() -> None:
            try:
                while not ended.is_set():
                    for seen, slot in zip(read, slots, strict=True):
                        seen.add(trained.digest([slot]))
                    for seen, value in zip(read, total(), strict=True):
                        seen.add(trained.digest([value]))
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=reads)
        if on:
            thread.start()
        for _ in range(steps):
            trained.step()
            if not on:
                for digests, slot in zip(after, slots, strict=True):
                    digests.append(trained.digest([slot]))
        ended.set()
        if on:
            thread.join()
        return {
            "read": [sorted(seen) for seen in read],
            "after": after,
            "errors": errors,
            **trained.state(),
        }

    def memory_is_counted(self) -> bool:
        """Whether TensorFlow's allocator counts."""
        self.the_strategy()
        try:
            return _bytes_in_use() >= 0
        except ValueError:
            return False

    def memory(self, on: bool, weights: int = 12) -> dict[str, int]:
        """Makes a step with many weights, and looks how much memory is in use.

        Args:
          on: whether the option is.
          weights: how many, of 330000 floats each. (Of few large ones, it depends on what was free
            before: the allocator gives chunks of up to twice the size.)

        Returns:
          Bytes: `state`, of the optimizer's variables; and what is in use more than before, after
          the first step, `stepped`, when the state was `read`, and after the second step, `again`.
        """
        import keras

        self._switch(on)
        strategy = self.the_strategy()
        before = _bytes_in_use()
        with strategy.scope():
            variables = [keras.Variable(np.ones([330, 1000], np.float32)) for _ in range(weights)]
            optimizer = keras.optimizers.Adam(0.01, amsgrad=True)
            optimizer.build(variables)

        def replica() -> None:
            optimizer.apply_gradients([(one.value * 0.5 + 1.0, one) for one in variables])

        step = tf.function(lambda: strategy.run(replica))
        told = {"state": sum(v.value.values[0].shape.num_elements() * 4 for v in
                             optimizer.variables[2:])}  # fmt: skip
        step()
        told["stepped"] = _bytes_in_use() - before
        float(tf.reduce_sum(optimizer.variables[2].value))
        told["read"] = _bytes_in_use() - before
        step()
        told["again"] = _bytes_in_use() - before
        return told

    def update_counters(self) -> dict[str, Any]:
        """What `tf_fuse.metrics` has of weight updates."""
        import tf_fuse

        self.the_strategy()
        return tf_fuse.metrics()["weight_updates"]

    def backed_up(self, folder: str, on: bool) -> dict[str, Any]:
        """Trains by `fit` of tf_keras, is interrupted, and goes on from the backup.

        Args:
          folder: of the backup, for this rank alone or for all.
          on: whether the option is.
        """
        import tf_keras

        self._switch(on)
        strategy = self.the_strategy()
        rng = np.random.default_rng(7)
        x, y = rng.standard_normal([24, 10]), rng.standard_normal([24, 1])
        path = Path(folder) / ("on" if on else "off")
        told: dict[str, Any] = {"losses": []}

        def fit(interrupted: bool) -> Any:
            tf_keras.utils.set_random_seed(3)
            with strategy.scope():
                layer = tf_keras.layers.Dense(37, activation="tanh")
                model = tf_keras.Sequential([tf_keras.Input([10]), layer, tf_keras.layers.Dense(1)])
                model.compile(tf_keras.optimizers.Adam(0.05), "mse")
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4 * self.ranks)
            callbacks = [tf_keras.callbacks.BackupAndRestore(str(path))]
            if interrupted:
                callbacks.append(_interruption(tf_keras))
            with contextlib.suppress(_Interrupted):
                history = model.fit(data, epochs=3, callbacks=callbacks, verbose=0)
                told["losses"] = [float(loss).hex() for loss in history.history["loss"]]
            return model

        fit(interrupted=True)
        model = fit(interrupted=False)
        values = [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]
        told["values"] = hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()
        updates = getattr(tf_context(), "_tf_fuse_updates", None)
        told["why"] = updates.decisions[-1].reason if on else None
        return told


def _bytes_in_use() -> int:
    """What TensorFlow's allocator has given out for tensors that still exist."""
    gc.collect()
    return int(tf.config.experimental.get_memory_info("CPU:0")["current"])


class _Interrupted(Exception):
    """Stands for what ends a program between two epochs."""


def _interruption(tf_keras: Any) -> Any:
    class Interruption(tf_keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise _Interrupted

    return Interruption()
