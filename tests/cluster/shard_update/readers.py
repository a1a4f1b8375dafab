# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What reads, saves, restores or assigns the optimizer's state between two steps.

Nothing here imports tf_fuse: ranks without the plugin run it as well.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


def tf_context() -> Any:
    """The eager context."""
    from tensorflow.python.eager import context

    return context.context()


def make_readers(member: Any, library: str, optimizer: str, args: dict[str, Any]) -> Any:
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
    readers.member, readers.library, readers.were_sharded = member, library, []
    return readers


class _Readers:
    """What is done between the steps of `option_cases._Trained`."""

    model: Any
    optimizer: Any
    strategy: Any
    folder: Path
    library: str
    member: Any
    were_sharded: list[int]

    def look(self) -> None:
        """Notes how many variables are in shards."""
        self.were_sharded.append(self.count_sharded())

    def count_sharded(self) -> int:
        """How many variables are in shards."""
        updates = getattr(tf_context(), "_tf_fuse_updates", None)
        shard_groups = [] if updates is None else updates.shard_groups()
        mine = {id(getattr(v, "_value", v)._values[0].__dict__["_handle"]) for v in self.slots()}
        return sum(
            sum(id(handle) in mine for handle in shard_group.handles())
            for shard_group in shard_groups
            if shard_group.is_sharded
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
        """Adds to one slot, on all ranks: the others have to go on unchanged."""
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
