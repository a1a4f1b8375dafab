# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of `cases.py` that train."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.sessions.bench import (
    Bench,
    all_variables,
    batch,
    case,
    numbers,
    on_worker,
    ps,
    training_graph,
    variables,
)

v1 = tf.compat.v1


@case
def monitored_training(bench: Bench) -> list[Any]:
    """replica_device_setter, Adam and MonitoredTrainingSession: one worker, two servers."""
    graph = training_graph(v1.train.AdamOptimizer(0.01))
    with bench.monitored() as session:
        values = [
            session.run([graph["loss"], graph["train"]], batch(graph, i))[0] for i in range(5)
        ]
        return [*values, *session.run(v1.global_variables())]


@case
def two_workers(bench: Bench) -> list[Any]:
    """Two workers, each with its own graph and session, that take turns."""
    graphs = []
    sessions = []
    with contextlib.ExitStack() as stack:
        for worker in range(2):
            own = tf.Graph()
            with own.as_default():
                graphs.append(training_graph(v1.train.GradientDescentOptimizer(0.05), worker))
                session = bench.monitored(worker, is_chief=worker == 0)
                sessions.append(stack.enter_context(session))
        values = []
        for i in range(6):
            graph, session = graphs[i % 2], sessions[i % 2]
            values += session.run([graph["loss"], graph["train"]], batch(graph, i))[:1]
        return [*values, sessions[1].run(graphs[1]["step"])]


@case
def sync_replicas(bench: Bench) -> list[Any]:
    """SyncReplicasOptimizer: two workers at once; the sum of two gradients has one order."""
    steps = 4
    losses: dict[tuple[int, int], Any] = {}
    together = threading.Barrier(2, timeout=50)
    chief_is_ready = threading.Event()  # Else the other waits for it half a minute.
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        optimizer = v1.train.SyncReplicasOptimizer(
            v1.train.GradientDescentOptimizer(0.05), replicas_to_aggregate=2, total_num_replicas=2
        )
        graph = training_graph(optimizer, worker)
        hook = optimizer.make_session_run_hook(is_chief=worker == 0, num_tokens=0)
        if worker != 0 and not chief_is_ready.wait(50):
            raise TimeoutError("the chief did not begin")
        with bench.monitored(worker, is_chief=worker == 0, hooks=[hook]) as session:
            chief_is_ready.set()
            for i in range(steps):
                together.wait()
                feed = batch(graph, 10 * worker + i)
                losses[i, worker] = session.run([graph["loss"], graph["train"]], feed)[0]
            together.wait()
            if worker == 0:
                losses[steps, 0] = session.run(graph["step"])
            together.wait()  # The chief's queue runner serves both.

    def guarded(worker: int) -> None:
        try:
            with tf.Graph().as_default():
                work(worker)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=guarded, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [losses[key] for key in sorted(losses)]


@case
def ref_variables(bench: Bench) -> list[Any]:
    """Variables of the old kind, updated in place, with and without slots."""
    graph = training_graph(v1.train.MomentumOptimizer(0.01, 0.9), use_resource=False)
    assert any(v.op.type == "VariableV2" for v in v1.global_variables())
    with bench.started() as session:
        values = [
            session.run([graph["loss"], graph["train"]], batch(graph, i))[0] for i in range(4)
        ]
        return [*values, *all_variables(session)]


@case
def parts_of_a_ref_variable(bench: Bench) -> list[Any]:
    """Four reads that wait for the same variable of the old kind, and its update."""
    with on_worker():
        v = v1.get_variable("v", initializer=tf.constant(numbers(0, 4, 3)), use_resource=False)
        x = v1.placeholder(tf.float32, [3])
        with tf.device(ps(0)):
            rows = [v[i] for i in range(4)]
        total = tf.add_n([row * x for row in rows])
        with tf.control_dependencies([total]):
            update = v1.assign_add(v, tf.stack([total] * 4))
    with bench.started() as session:
        values = [y for i in range(3) for y in session.run([total, update], {x: numbers(i, 3)})]
        return [*values, *all_variables(session)]


@case
def partitioned_variables(bench: Bench) -> list[Any]:
    """Variables in shards on both servers, looked up and read whole."""
    with on_worker():
        with v1.variable_scope("m", partitioner=v1.fixed_size_partitioner(4)):
            tables = [
                v1.get_variable(f"table{i}", initializer=tf.constant(numbers(i, 12, 3)))
                for i in range(3)
            ]
            weight = v1.get_variable("weight", initializer=tf.constant(numbers(9, 8, 2)))
        ids = v1.placeholder(tf.int64, [None])
        rows = [v1.nn.embedding_lookup(t, ids, partition_strategy="div") for t in tables]
        loss = tf.reduce_sum(tf.tanh(tf.add_n(rows))) + tf.reduce_sum(tf.square(weight))
        train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    with bench.started() as session:
        feeds = [{ids: [0, 3, 11, 3]}, {ids: [7]}, {ids: []}]
        values = [session.run([loss, train], feed)[0] for feed in feeds]
        return [*values, *all_variables(session)]


@case
def feature_columns(bench: Bench) -> list[Any]:
    """input_layer and linear_model of tf.compat.v1.feature_column, on strings and numbers."""
    columns = v1.feature_column
    hashed = [columns.categorical_column_with_hash_bucket(f"s{i}", 20) for i in range(4)]
    named = columns.categorical_column_with_vocabulary_list("kind", ["a", "b", "c"])
    numeric = columns.numeric_column("n", shape=(2,))
    buckets = columns.bucketized_column(columns.numeric_column("age"), [10.0, 20.0, 40.0])
    crossed = columns.crossed_column([buckets, "kind"], 30)

    def table(width: int) -> Any:
        return lambda shape, dtype=tf.float32, partition_info=None: tf.constant(
            numbers(width, *shape)
        )

    with on_worker():
        features = {
            **{f"s{i}": v1.placeholder(tf.string, [None, 1], name=f"s{i}") for i in range(4)},
            "kind": v1.placeholder(tf.string, [None, 1], name="kind"),
            "n": v1.placeholder(tf.float32, [None, 2], name="n"),
            "age": v1.placeholder(tf.float32, [None, 1], name="age"),
        }
        deep = columns.input_layer(
            features,
            [
                *(
                    columns.embedding_column(c, 3, initializer=table(i))
                    for i, c in enumerate(hashed)
                ),
                columns.indicator_column(named),
                numeric,
            ],
        )
        wide = columns.linear_model(features, [*hashed, buckets, crossed])
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(deep, 1, keepdims=True) + wide - 1.0))
        train = v1.train.FtrlOptimizer(0.1).minimize(loss)
    feed = {
        **{features[f"s{i}"]: [[f"x{i}"], ["y"], ["ä\0z"]] for i in range(4)},
        features["kind"]: [["a"], ["c"], ["unknown"]],
        features["n"]: numbers(3, 3, 2),
        features["age"]: [[5.0], [15.0], [99.0]],
    }
    with bench.session() as session:
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        values = [session.run([loss, train], feed)[0] for _ in range(3)]
        return [*values, session.run(deep, feed), *all_variables(session)]


@case
def tables(bench: Bench) -> list[Any]:
    """Lookups and updates of rows, whose operations are put together on each server.

    Several fetches, so several graphs of one session, have the same operations in part.
    """
    with on_worker():
        v = variables(12, 50, 3)
        ids = v1.placeholder(tf.int32, [12, None])
        rows = [tf.gather(table, ids[i]) for i, table in enumerate(v)]
        loss = tf.reduce_mean(tf.square(tf.concat(rows, 1)))
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        half = tf.add_n(rows[:6])
    chosen = np.random.default_rng(0).integers(50, size=[4, 12, 8]).astype(np.int32)
    wrong = chosen[0].copy()
    wrong[7, 3] = 50
    with bench.started() as session:
        values = []
        for i in range(4):
            feed = {ids: chosen[i]}
            values += session.run([loss, train], feed)[:1]
            values += [*session.run([half, rows[0]], feed), session.run(rows[11], feed)]
            values.append(session.run(loss, feed))
        try:
            session.run([loss, train], {ids: wrong})
        except tf.errors.InvalidArgumentError as error:
            message = error.message
            values.append(np.array([str(error.error_code), "= 50 is not in [0, 50)" in message]))
            bench.told["error"] = message
        values += session.run([loss, train], {ids: chosen[1]})[:1]
        return [*values, *all_variables(session)]


@case
def queue_between_steps(bench: Bench) -> list[Any]:
    """A dequeue on a server that waits for another run, beside reads that wait for nothing."""
    with on_worker():
        v = variables(4, 3)
        total = tf.add_n([x * 2.0 for x in v])
    with tf.device(ps(0)):
        queue = tf.queue.FIFOQueue(4, [tf.float32, tf.float32], [[3], [3]])
        items = queue.dequeue()
    with tf.device("/job:worker/task:0"):
        put = queue.enqueue([total, total + 1.0])
        taken = tf.add_n([*items, *[x * 3.0 for x in v]])
    with bench.started() as session:
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(session.run(taken)))
        thread.start()
        session.run(put)
        thread.join()
        return got
