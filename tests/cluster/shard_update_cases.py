# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training steps whose update is sharded by hand: what `shard_update` plans, switched on here."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from cluster import shard_update_programs


class ShardUpdateCases:
    """Cases of `collective_cases.Member`."""

    rank: int
    ranks: int

    def update(
        self,
        library: str,
        optimizer: str,
        sharded: bool,
        steps: int,
        options: dict[str, Any] | None = None,
        exact: bool = False,
    ) -> dict[str, Any]:
        """Trains a model of uneven layers under MultiWorkerMirroredStrategy.

        Args:
          library: "keras", "tf_keras", "tf_keras.legacy", or "v1" for `tf.compat.v1.train`.
          optimizer: name of the class.
          sharded: whether the plan is carried out.
          steps: of training.
          options: of the optimizer.
          exact: whether the plan leaves alone what would not be bit-equal.

        Returns:
          The weights, a digest of them, the losses, why gradients were left alone, how many
          families are cut and not exact, the elements of all slots that are cut, and those that
          this rank has.
        """
        keras = importlib.import_module("tf_keras" if library.startswith("tf_keras") else "keras")
        strategy = self._the_strategy()
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layers = [keras.layers.Dense(n, activation="tanh") for n in (37, 5)]
            model = keras.Sequential([keras.Input([10]), *layers, keras.layers.Dense(1)])
            chosen = _optimizer(keras, library, optimizer, options or {})
            if hasattr(chosen, "build"):
                chosen.build(model.trainable_variables)

        variables = model.trainable_variables
        if library == "v1":
            variables = [variable.value for variable in variables]

        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, variables)
            chosen.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        step = tf.function(lambda x, y: strategy.run(replica, args=(x, y)))
        name = f"{library}.{optimizer}.{sorted((options or {}).items())}/"
        told = self._train(step, steps, name, sharded, exact)
        return _with_weights(told, model.trainable_variables)

    def reduction(self, name: str, sharded: bool) -> dict[str, Any]:
        """Updates weights by what is left of a reduction of their gradients.

        Args:
          name: of _REDUCTIONS.
          sharded: whether the plan is carried out.

        Returns:
          As `update`.
        """
        strategy = self._the_strategy()
        rng = np.random.default_rng(5)
        with strategy.scope():
            weights = [
                tf.Variable(rng.standard_normal(shape), dtype=tf.float32)
                for shape in ([9, 5, 7], [3, 2], [1, 1])
            ]

        def replica_step(x: Any, y: Any) -> Any:
            context = tf.distribute.get_replica_context()
            flat = tf.reshape(x * y, [-1])
            loss = tf.add_n([tf.reduce_sum(tf.cumsum(tf.abs(w))) for w in weights])
            gradients = context.all_reduce("sum", [_stretched(flat, w.shape) for w in weights])
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(gradient * _REDUCTIONS[name](gradient))
            return loss

        step = tf.function(lambda x, y: strategy.run(replica_step, args=(x, y)))
        told = self._train(step, 2, f"{name}/", sharded)
        return _with_weights(told, weights)

    def program(self, name: str, sharded: bool) -> dict[str, Any]:
        """Runs a step of `shard_update_programs`.

        Args:
          name: of the function that makes it.
          sharded: whether the plan is carried out.

        Returns:
          As `update`.
        """
        strategy = self._the_strategy()
        step, weights = getattr(shard_update_programs, name)(strategy)
        return _with_weights(self._train(step, 4, f"{name}/", sharded), weights)

    def _the_strategy(self) -> Any:
        """One for all cases: making one restarts what the collectives know."""
        if getattr(self, "_strategy", None) is None:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return self._strategy

    def _train(
        self, step: Any, steps: int, name: str, sharded: bool, exact: bool = False
    ) -> dict[str, Any]:
        """Runs a step on this rank's data."""
        rng = np.random.default_rng(self.rank)
        x = tf.constant(rng.standard_normal([16, 10]), tf.float32)
        y = tf.constant(rng.standard_normal([16, 1]), tf.float32)
        function = step.get_concrete_function(x, y)
        told: dict[str, Any] = {"reasons": [], "inexact": 0, "whole": 0, "own": 0}
        if sharded:
            told = _carry_out(function, self.ranks, self.rank, name, exact)
        return {"losses": [float(step(x, y)).hex() for _ in range(steps)], **told}


# Of a gradient, to what it is broadcast against; whether the order of additions matters.
_REDUCTIONS: dict[str, Any] = {
    "all": lambda g: tf.cast(tf.reduce_all(g > -9.0, axis=-1, keepdims=True), tf.float32),
    "any": lambda g: tf.cast(tf.reduce_any(g > 1.0, axis=0), tf.float32),
    "max": tf.reduce_max,
    "max_of_rows": lambda g: tf.reduce_max(g, axis=-1, keepdims=True),
    "max_of_columns": lambda g: tf.reduce_max(g, axis=0),
    "mean": tf.reduce_mean,
    "mean_of_rows": lambda g: tf.reduce_mean(g, axis=-1, keepdims=True),
    "min": lambda g: tf.reduce_min(g, keepdims=True),
    "norm": lambda g: tf.raw_ops.EuclideanNorm(input=g, axis=[0], keep_dims=True),
    "product": lambda g: tf.reduce_prod(0.1 + tf.abs(g), axis=0),
    "sum_of_first_and_last": lambda g: tf.reduce_sum(g, axis=[0, -1], keepdims=True),
}


def _stretched(flat: Any, shape: Any) -> Any:
    """A tensor of a shape, made of all elements of a vector."""
    size = shape.num_elements()
    return tf.reshape(tf.tile(flat, [-(-size // flat.shape[0])])[:size], shape)


def _with_weights(told: dict[str, Any], weights: Any) -> dict[str, Any]:
    values = [weight.numpy() for weight in weights]
    bits = b"".join(one.tobytes() for one in values)
    return {"values": values, "weights": hashlib.sha256(bits).hexdigest(), **told}


def _optimizer(keras: Any, library: str, name: str, options: dict[str, Any]) -> Any:
    if library == "v1":
        return getattr(tf.compat.v1.train, name)(0.05, **options)
    module = keras.optimizers.legacy if library.endswith("legacy") else keras.optimizers
    return getattr(module, name)(0.05, **options)


class ShardUpdateOptionCases:
    """Cases of `collective_cases.Member`: updates cut by the option."""

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
          always: whether it is cut however small they are.
          args: of the optimizer.

        Returns:
          Digests of the weights and of the optimizer's variables after training, the losses, and
          what the reads gave.
        """
        from tf_fuse.shard_update import outline

        outline.MIN_ELEMENTS = 2
        tf.config.optimizer.set_experimental_options(
            {
                "shard_weight_update": on,
                "shard_weight_update_always": always,
                "compile_weight_update": compiled,
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

    def fitted(self, on: bool, optimizer: str = "Adam", execution: int = 1) -> dict[str, Any]:
        """Trains by `fit` of tf_keras.

        Args:
          on: whether the option is.
          optimizer: name of the class.
          execution: steps per call of the function.

        Returns:
          The losses of epochs, digests of the weights and of the optimizer's variables, and how
          many functions were cut.
        """
        from tensorflow.python.eager import context
        from tf_keras import Input, Sequential, layers, optimizers, utils

        tf.config.optimizer.set_experimental_options(
            {"shard_weight_update": on, "shard_weight_update_always": True}
        )
        strategy = self._strategy = getattr(self, "_strategy", None) or (
            tf.distribute.MultiWorkerMirroredStrategy()
        )
        utils.set_random_seed(3)
        with strategy.scope():
            model = Sequential([Input([10]), layers.Dense(37, activation="tanh"), layers.Dense(1)])
            chosen = getattr(optimizers, optimizer)(0.05)
            model.compile(chosen, "mse", steps_per_execution=execution)
        rng = np.random.default_rng(7)
        x, y = rng.standard_normal([72, 10]), rng.standard_normal([72, 1])
        history = model.fit(x, y, batch_size=8 * self.ranks, epochs=2, verbose=0)
        weights = b"".join(w.tobytes() for w in model.get_weights())
        variables = chosen.variables
        slots = b"".join(
            v.numpy().tobytes() for v in (variables() if callable(variables) else variables)
        )
        updates = getattr(context.context(), "_tf_fuse_updates", None)
        decisions = [] if updates is None else updates.decisions
        return {
            "losses": history.history["loss"],
            "weights": hashlib.sha256(weights).hexdigest(),
            "slots": hashlib.sha256(slots).hexdigest(),
            "reasons": [decision.reason for decision in decisions],
        }

    def only_steps(self, steps: int) -> list[str]:
        """Goes on with the training of `trained`; its losses."""
        for _ in range(steps):
            self._trained.step()
        return self._trained.losses

    def only_reads(self) -> str:
        """The variables of the optimizer of `trained`."""
        return self._trained.everyone_reads(0)

    def allocated(self) -> int:
        """Bytes of the values of the optimizer's variables and their parts, as TensorFlow has them.

        A variable without a value has none; to look at it is not to read it.
        """
        return self._trained.allocated()

    def badly_planned(self) -> dict[str, Any]:
        """Trains as `trained`, while planning raises."""
        from tf_fuse.shard_update import hook

        def bad(*args: Any, **more: Any) -> Any:
            raise ValueError("badly planned on purpose")

        make_plan, hook.make_plan = hook.make_plan, bad
        try:
            return self.trained()
        finally:
            hook.make_plan = make_plan

    def wrongly_cut(self) -> dict[str, Any]:
        """Trains as `trained`, while the verifier finds something wrong with each function."""
        from tf_fuse.shard_update import hook

        verify, hook.verify = hook.verify, lambda *args: "it is wrong on purpose"
        try:
            return self.trained() | {"decided": self.decided()[-1]}
        finally:
            hook.verify = verify

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
                sorted({f.reason or "" for pack in decision.plan.packs for f in pack.families})
                if decision.plan
                else [],
            )
            for decision in context.context()._tf_fuse_updates.decisions
        ]


class _Trained:
    """A model in training."""

    def __init__(self, member: Any, strategy: Any, library: str, optimizer: str, args: Any):
        import importlib

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
        """Of each bundle, the bytes that are here, those of all, whether in parts, and steps."""
        from tensorflow.python.eager import context

        updates = getattr(context.context(), "_tf_fuse_updates", None)
        bundles = [] if updates is None else updates.bundles()
        return [(*b.bytes(), b.is_parted, b.version) for b in bundles]

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
        bundles = [] if updates is None else updates.bundles()
        for bundle in bundles:
            if mine & {id(handle) for handle in bundle.handles()}:
                total += bundle.allocated()
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
            (len(d.outline.cones), sorted({left.reason for left in d.outline.left}))
            for d in decisions
            if d.outline.cones
        ]

    def everyone_reads(self, step: int) -> str:
        """The optimizer's variables, on all ranks."""
        return self.digest(self.slots())

    def one_reads(self, step: int) -> str:
        """The optimizer's variables, on one rank, another one each time."""
        return self.digest(self.slots()) if step % 2 == self.rank % 2 else ""


def _carry_out(function: Any, count: int, rank: int, prefix: str, exact: bool) -> dict[str, Any]:
    """Gives a function its new body, and its slots their parts."""
    from tensorflow.python.eager import context as context_module
    from tensorflow.python.ops import handle_data_util

    from tf_fuse.shard_update.plan import Replicas, make_plan

    context = context_module.context()
    definition = function.function_def
    names = [argument.name for argument in definition.signature.input_arg]

    def body(name: str) -> Any:
        return context.get_function_def(name) if context.has_function(name) else None

    def is_variable(tensor: Any) -> bool:
        data = handle_data_util.get_resource_handle_data(tensor)
        return tensor.dtype == tf.resource and data is not None and data.is_set

    graph = function.graph
    mirrored = [n for n, t in zip(names, graph.inputs, strict=True) if is_variable(t)]
    plan = make_plan(definition, graph, body, Replicas(count, {"": rank}), mirrored, prefix, exact)
    captures = dict(
        zip(names[-len(function.captured_inputs) :], function.captured_inputs, strict=True)
    )
    whole = own = 0
    if plan.function is not None:
        context.remove_function(definition.signature.name)
        for one in [*plan.functions, plan.function]:
            context.add_function_def(one)
    for slot in plan.slots:
        dtype = tf.dtypes.as_dtype(slot.dtype)
        handle = captures[slot.argument]
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        part = tf.reshape(value, [-1])[slot.begin : slot.end]
        holder = tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=part.shape, shared_name=slot.shared_name, container=""
        )
        tf.raw_ops.AssignVariableOp(resource=holder, value=part)
        # Whoever reads the whole one now gets nothing of its shape.
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))
        whole += int(np.prod(slot.shape))
        own += slot.own[1] - slot.own[0]
    families = [family for pack in plan.packs for family in pack.families]
    reasons = [pack.reason for pack in plan.packs] + [family.reason for family in families]
    return {
        "reasons": sorted({reason for reason in reasons if reason}),
        "inexact": sum(not family.exact for family in families),
        "whole": whole,
        "own": own,
    }
