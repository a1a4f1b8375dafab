# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who reads, saves, restores or assigns the optimizer's state while updates are cut by the option.

Each case does the same with the option on and off, and returns digests that must be equal. Nothing
here imports tf_fuse: ranks without the plugin run these cases as well.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import itertools
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.collectives.ranks import BEGUN


class ShardUpdateReaderCases:
    """Cases of `collectives.cases.Member`: readers of what is in parts."""

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
          By reader what it gave; and `losses`, `weights`, `slots` at the end, and `parted`: how
          many variables were in parts before each read, and in the middle of some.
        """
        self._switch(on)
        if schedule:
            keras = importlib.import_module(library)
            decay = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
            args["learning_rate"] = decay
        trained = self._reader = _readers(self, library, optimizer, args)
        if restored:
            trained.checkpoint().read(restored).assert_consumed()
        trained.folder = Path(folder) / ("on" if on else "off")
        trained.folder.mkdir(parents=True, exist_ok=True)
        told: dict[str, Any] = {"parted": trained.were_parted}
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
        parted = trained.parted()
        if saved and self.rank == 0:
            trained.checkpoint().write(saved)
        return {"parted": parted, **trained.state()}

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
          Of each function that trains, why it is not cut.
        """
        import tf_fuse

        self._switch(True)
        self._reader.step()
        self._reader = _readers(self, "keras", "Adam", {})
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
        """Trains while another thread reads and assigns what is in parts.

        Returns:
          As `goes_on`, and `read`: by variable, the digests of the values that the thread read;
          `after`: by variable, those behind each step, if the option is off.
        """
        self._switch(on)
        trained = self._reader = _readers(self, "keras", "Adam", {})
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


def tf_context() -> Any:
    """The eager context."""
    from tensorflow.python.eager import context

    return context.context()


class _Interrupted(Exception):
    """Stands for what ends a program between two epochs."""


def _interruption(tf_keras: Any) -> Any:
    class Interruption(tf_keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise _Interrupted

    return Interruption()


def _readers(member: Any, library: str, optimizer: str, args: dict[str, Any]) -> Any:
    from tests.cluster.shard_update.option_cases import _Trained

    class Readers(_Readers, _Trained):
        pass

    args = dict(args)
    rate = args.pop("learning_rate", None)
    readers = Readers(member, member.the_strategy(), library, optimizer, args)
    if rate is not None:
        with readers.strategy.scope():
            readers.optimizer = type(readers.optimizer)(rate, **args)
            readers.optimizer.build(readers.model.trainable_variables)
    readers.member, readers.library, readers.were_parted = member, library, []
    return readers


class _Readers:
    """What is done between the steps of `option_cases._Trained`."""

    model: Any
    optimizer: Any
    strategy: Any
    folder: Path
    library: str
    member: Any
    were_parted: list[int]

    def look(self) -> None:
        """Notes how many variables are in parts."""
        self.were_parted.append(self.parted())

    def parted(self) -> int:
        """How many variables are in parts."""
        updates = getattr(tf_context(), "_tf_fuse_updates", None)
        shard_groups = [] if updates is None else updates.shard_groups()
        mine = {id(getattr(v, "_value", v)._values[0].__dict__["_handle"]) for v in self.slots()}
        return sum(
            sum(id(handle) in mine for handle in shard_group.handles())
            for shard_group in shard_groups
            if shard_group.is_parted
        )

    def state(self) -> dict[str, Any]:
        """Losses, and digests of all values."""
        return {
            "losses": list(self.losses),
            "slots": self.digest(self.slots()),
            "weights": self.digest(self.model.trainable_variables),
        }

    def _own_folder(self, name: str) -> str:
        path = self.folder / f"{name}_{self.member.rank}"
        shutil.rmtree(path, ignore_errors=True)
        return str(path)

    # --- Models that are saved -------------------------------------------------------------------

    def model_is_saved(self) -> list[str]:
        """Rank 0 saves a .keras file, alone, and loads it."""
        if self.member.rank:
            return []
        keras = importlib.import_module(self.library)
        path = f"{self._own_folder('model')}.keras"
        self.model.compile(self.optimizer, "mse")
        self.model.save(path)
        return self._loaded(keras.models.load_model(path))

    def saved_model(self) -> list[str]:
        """Saves in TensorFlow's format, on all ranks, which make variables of it together."""
        keras = importlib.import_module(self.library)
        path = self._own_folder("saved_model")
        self.model.compile(self.optimizer, "mse")
        self.model.save(path, save_format="tf")
        return self._loaded(keras.models.load_model(path))

    def _loaded(self, model: Any) -> list[str]:
        variables = model.optimizer.variables
        # (Keras 3 saves the learning rate as a setting, and as a variable.)
        return [
            self.digest(variables() if callable(variables) else variables),
            self.digest(model.trainable_variables),
        ]

    # --- Checkpoints -----------------------------------------------------------------------------

    def _fresh(self) -> tuple[dict[str, Any], Any]:
        """Variables of the same shapes with other values, and a checkpoint of them."""
        variables = {
            name: tf.Variable(tf.zeros_like(value.numpy()))
            for name, value in self._by_name().items()
        }
        return variables, tf.train.Checkpoint(**variables)

    def _by_name(self) -> dict[str, Any]:
        checkpoint = self.checkpoint()
        return {name: getattr(checkpoint, name) for name in vars(checkpoint)
                if name.startswith(("slot_", "weight_"))}  # fmt: skip

    def checkpoint_is_saved(self) -> str:
        """Saves a checkpoint, and restores it elsewhere."""
        path = self.checkpoint().save(self._own_folder("checkpoint"))
        variables, fresh = self._fresh()
        fresh.restore(path).assert_existing_objects_matched()
        return self.digest(list(variables.values()))

    def checkpoint_is_saved_aside(self) -> str:
        """Saves by a thread of TensorFlow's, while training goes on."""
        options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
        checkpoint = self.checkpoint()
        prefix = self._own_folder("async")
        path = checkpoint.save(prefix, options=options)
        self.step()
        checkpoint.sync()
        variables, fresh = self._fresh()
        fresh.restore(path).assert_existing_objects_matched()
        return self.digest(list(variables.values()))

    def checkpoints_are_managed(self) -> str:
        """Saves by a manager two times, and goes back to the first one."""
        checkpoint = self.checkpoint()
        manager = tf.train.CheckpointManager(checkpoint, self._own_folder("manager"), 2)
        manager.save()
        self.step()
        manager.save()
        first, _ = manager.checkpoints
        checkpoint.restore(first)
        return self.digest(self.slots())

    # --- Variables -------------------------------------------------------------------------------

    def variables_are_read(self) -> list[str]:
        """`numpy`, `value`, conversion to a tensor, and an operation on the variable."""
        slot = getattr(self.slots()[3], "_value", self.slots()[3])
        ways = [slot.numpy(), slot.value(), tf.convert_to_tensor(slot), slot + 0, slot.read_value()]
        return [hashlib.sha256(np.asarray(way).tobytes()).hexdigest() for way in ways]

    def weights_are_got(self) -> str:
        """What the optimizer says that its weights are, by the method for that."""
        if hasattr(self.optimizer, "get_weights"):
            values = self.optimizer.get_weights()
        else:
            store: dict[str, Any] = {}
            self.optimizer.save_own_variables(store)
            values = [store[key] for key in sorted(store)]
        return hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in values)).hexdigest()

    def slot_is_added_to(self) -> str:
        """Adds to one slot, on all ranks: the others have to go on as they are."""
        self.slots()[2].assign_add(tf.ones_like(self.slots()[2]))
        return self.digest(self.slots())

    def rate_is_assigned(self) -> str:
        """Assigns the learning rate."""
        self.optimizer.learning_rate = 0.01
        return float(tf.convert_to_tensor(self.optimizer.learning_rate)).hex()

    def rate_is_read(self) -> str:
        """What the schedule says."""
        return float(tf.convert_to_tensor(self.optimizer.learning_rate)).hex()

    def averages_overwrite(self) -> str:
        """The weights become their averages, which are slots."""
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        return self.digest(self.model.trainable_variables)

    # --- Functions -------------------------------------------------------------------------------

    def some_are_updated(self) -> str:
        """Another function updates some of the weights, with the same slots."""
        if not hasattr(self, "some"):

            def replica(x: Any, y: Any) -> None:
                weights = self.model.trainable_variables[2:5]
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
                gradients = tape.gradient(loss, weights)
                self.optimizer.apply_gradients(zip(gradients, weights, strict=True))

            self.some = tf.function(lambda x, y: self.strategy.run(replica, args=(x, y)))
        self.some(self.x, self.y)
        self.look()
        self.step()
        self.some(self.x, self.y)
        return self.digest(self.slots())

    def small_packs(self) -> str:
        """Another function reduces the gradients in several buckets, and updates by hand."""
        weights = self.model.trainable_variables
        slots = [getattr(s, "_value", s) for s in self.slots()[2 : 2 + 2 * len(weights) : 2]]

        def replica(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=600)
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce("sum", tape.gradient(loss, weights), options)
            for weight, slot, gradient in zip(weights, slots, gradients, strict=True):
                slot.assign(0.5 * slot + gradient)
                weight._value.assign_sub(0.01 * slot)

        packed = tf.function(lambda x, y: self.strategy.run(replica, args=(x, y)))
        packed(self.x, self.y)
        self.look()
        self.step()
        packed(self.x, self.y)
        return self.digest(self.slots())

    def switched_off_and_on(self) -> str:
        """Trains a step with the option off, in the middle of training with it on."""
        on = bool(tf.config.optimizer.get_experimental_options().get("shard_weight_update"))
        self.member._switch(False)
        self.step()
        self.look()
        self.member._switch(on)
        self.step()
        return self.digest(self.slots())
