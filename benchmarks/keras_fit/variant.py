# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One variant, in a process of its own that waits before each round; `run.py` starts it.

    python variant.py '{"variant": "fit", "workers": 2, ...}'

Commands and events are those of `examples/job.py`: {"run": STEPS} runs a round.

The model is wide & deep on the columns of Criteo's logs: 13 numbers and 26 categories, of a file or
drawn. Keras 3 and tf_keras build it with the same code.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf

from examples import job
from examples.wide_deep.data import criteo
from examples.wide_deep.data.common import stable_bucket
from examples.wide_deep.data.encode import scaled

NUMERIC, CATEGORICAL = len(criteo.NUMERIC), len(criteo.CATEGORICAL)
_POOL = 32  # batches, drawn or read once and repeated: reading them costs little


def model(keras: Any, settings: dict[str, Any]) -> Any:
    """Wide & deep (Cheng et al., 2016), in the scope of a strategy.

    Args:
      keras: Keras 3, or tf_keras.
      settings: of the benchmark.
    """
    keras.utils.set_random_seed(settings["seed"])
    numeric = keras.Input([NUMERIC])
    ids = keras.Input([CATEGORICAL], dtype="int32")
    columns = range(CATEGORICAL)
    rows = settings["rows"]
    deep = [keras.layers.Embedding(rows, settings["dim"])(ids[:, i]) for i in columns]
    wide = [keras.layers.Embedding(rows, 1)(ids[:, i]) for i in columns]
    x = keras.layers.Concatenate()([numeric, *deep])
    for width in (settings["width"], settings["width"] // 2):
        x = keras.layers.Dense(width, activation="relu")(x)
    logits = keras.layers.Add()([*wide, keras.layers.Dense(1)(x)])
    return keras.Model([numeric, ids], logits)


def batches(settings: dict[str, Any], worker: Any = 0) -> tf.data.Dataset:
    """Endless batches ((numbers, categories), labels) of a worker: of the file, or drawn."""
    if settings["data"]:
        rows = tf.data.Dataset.from_tensor_slices(read(settings))
        shuffled = rows.shuffle(_POOL * settings["batch"], tf.cast(worker, tf.int64) + 1)
        whole = shuffled.repeat().batch(settings["batch"], drop_remainder=True)
        return whole.take(_POOL).cache().repeat().prefetch(2)

    def draw(number: tf.Tensor) -> Any:
        seed = tf.stack([tf.cast(number, tf.int64), tf.cast(worker, tf.int64)])
        shape = [settings["batch"], NUMERIC + CATEGORICAL]
        uniform = tf.random.stateless_uniform(shape, seed)
        skewed = uniform[:, NUMERIC:] ** 3 * settings["rows"]
        ids = tf.minimum(tf.cast(skewed, tf.int32), settings["rows"] - 1)
        numeric = uniform[:, :NUMERIC] * 2.0 - 1.0
        score = tf.reduce_sum(numeric, axis=1) + tf.cast(ids[:, 0] % 2, tf.float32)
        return (numeric, ids), tf.cast(score > 0.5, tf.float32)[:, tf.newaxis]

    return tf.data.Dataset.range(_POOL).map(draw).cache().repeat().prefetch(2)


def read(settings: dict[str, Any]) -> Any:
    """Read the first rows of a file in Criteo's format, as many as the batches of a worker have.

    Returns:
      Arrays ((numbers [rows, 13], categories [rows, 26]), labels [rows, 1]).
    """
    found = criteo.read(settings["data"])
    rows = list(itertools.islice(found, _POOL * settings["batch"]))
    numeric = [[scaled(one) for one in row.numeric] for row in rows]
    ids = [
        [
            stable_bucket(f"{name}={text}", settings["rows"])
            for name, text in zip(criteo.CATEGORICAL, row.categorical, strict=True)
        ]
        for row in rows
    ]
    labels = [[row.label] for row in rows]
    return (np.array(numeric, np.float32), np.array(ids, np.int32)), np.array(labels, np.float32)


class _Rounds:
    """The rounds of this process: it waits before each while other variants run.

    Args:
      settings: of the benchmark.
      commands: waits for the next command.
      cluster: has the workers and servers.
    """

    def __init__(self, settings: dict[str, Any], commands: Callable[[], Any], cluster: Any):
        self.steps = settings["steps"]
        self._commands = commands
        self._cluster = cluster
        self._begun = (0.0, 0.0, 0.0)

    def _now(self) -> tuple[float, float, float]:
        """Return the time, the CPU seconds of this process, and those of the tasks."""
        tasks = sum(self._cluster.cpu_seconds().values())
        return time.perf_counter(), time.process_time(), tasks

    def begin(self) -> bool:
        """Wait for the next round; return whether there is one."""
        if not self._commands():
            return False
        self._begun = self._now()
        return True

    def end(self, loss: float) -> None:
        """Say what the round took."""
        ms, cpu_ms, tasks_cpu_ms = (
            (end - begin) / self.steps * 1e3
            for begin, end in zip(self._begun, self._now(), strict=True)
        )
        job.emit(
            "round",
            ms_per_step=ms,
            cpu_ms_per_step=cpu_ms,
            tasks_cpu_ms_per_step=tasks_cpu_ms,
            loss=loss,
        )


def _compiled(keras: Any, settings: dict[str, Any], strategy: Any) -> Any:
    with strategy.scope():
        made = model(keras, settings)
        metrics = [keras.metrics.AUC(from_logits=True)] if settings["metrics"] else []
        made.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=metrics,
            steps_per_execution=settings["steps_per_execution"],
        )
    return made


def _fit(keras: Any, settings: dict[str, Any], strategy: Any, data: Any, rounds: _Rounds) -> None:
    class Epochs(keras.callbacks.Callback):
        """Rounds are epochs: tf_keras refuses callbacks of batches on parameter servers."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                job.emit("ready")
            if epoch > 0:
                rounds.begin()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Before Keras deletes the iterator: tf.data sometimes waits there for 10 s."""
            if epoch > 0:
                rounds.end(float(logs["loss"]))

    _compiled(keras, settings, strategy).fit(
        data,
        epochs=settings["rounds"] + 1,
        steps_per_epoch=settings["steps"],
        verbose=0,
        callbacks=[Epochs()],
    )


def fit(settings: dict[str, Any], strategy: Any, rounds: _Rounds) -> None:
    """Keras 3's `fit`; workers read their own datasets."""
    import keras

    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

    def data(context: Any) -> tf.data.Dataset:
        return batches(settings, context.input_pipeline_id)

    _fit(keras, settings, strategy, data, rounds)


def fit_coordinator(settings: dict[str, Any], strategy: Any, rounds: _Rounds) -> None:
    """Keras 3's `fit`; the coordinator reads the data."""
    import keras

    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

    _fit(keras, settings, strategy, batches(settings), rounds)


def tf_keras(settings: dict[str, Any], strategy: Any, rounds: _Rounds) -> None:
    """tf_keras's own `fit`."""
    import tf_keras as keras  # type: ignore[import-untyped]

    data = keras.utils.experimental.DatasetCreator(lambda _: batches(settings))
    _fit(keras, settings, strategy, data, rounds)


def loop(
    settings: dict[str, Any], strategy: Any, rounds: _Rounds, keeps_mean: bool = False
) -> None:
    """Run a custom loop, as in TensorFlow's tutorial "Parameter server training".

    Args:
      settings: of the benchmark.
      strategy: the `ParameterServerStrategy`.
      rounds: of this process.
      keeps_mean: whether each step adds its loss to a metric.
    """
    import keras

    made = _compiled(keras, settings, strategy)
    with strategy.scope():
        made.optimizer.build(made.trainable_variables)
        auc = keras.metrics.AUC(from_logits=True) if settings["metrics"] else None
        if auc:
            auc.update_state([[0.0]], [[0.0]])
            auc.reset_state()
        mean = keras.metrics.Mean() if keeps_mean else None

    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def replica_step(element: Any) -> tf.Tensor:
        inputs, labels = element
        with tf.GradientTape() as tape:
            outputs = made(list(inputs), training=True)
            loss = loss_of(labels, outputs)
        variables = made.trainable_variables
        made.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        if auc:
            auc.update_state(labels, outputs)
        if mean:
            mean.update_state(loss)
        return loss

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        for _ in range(settings["steps_per_execution"]):
            loss = strategy.run(replica_step, args=(next(iterator),))
        return loss

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    index = tf.distribute.coordinator.experimental_get_current_worker_index
    iterator = iter(coordinator.create_per_worker_dataset(lambda: batches(settings, index())))

    def run() -> Any:
        for _ in range(0, settings["steps"], settings["steps_per_execution"]):
            result = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        return result

    run()
    job.emit("ready")
    while rounds.begin():
        rounds.end(float(run().fetch()))


VARIANTS: dict[str, Callable[..., None]] = {
    "loop": loop,
    "loop_mean": functools.partial(loop, keeps_mean=True),
    "fit": fit,
    "fit_coordinator": fit_coordinator,
    "tf_keras": tf_keras,
}


def run(spec: Mapping[str, Any], commands: Callable[[], Any]) -> None:
    """Run the rounds of a variant."""
    settings = dict(spec)
    if settings["variant"] == "tf_keras":  # The plugin is not loaded.
        from examples.standalone import cluster_package

        package, protocol = cluster_package(), "grpc"
    else:
        import tf_fuse  # noqa: F401  (loads the plugin)
        import tf_fuse.cluster as package

        protocol = "grpc+fuse"
        in_flight = settings["steps_in_flight"]
        tf.config.optimizer.set_experimental_options(
            {"tf_fuse": True, "steps_in_flight": in_flight}
        )
    cluster = package.LocalCluster(
        workers=settings["workers"], ps=settings["ps"], protocol=protocol
    )
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    VARIANTS[settings["variant"]](settings, strategy, _Rounds(settings, commands, cluster))


if __name__ == "__main__":
    job.main(run)
