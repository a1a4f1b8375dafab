# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphs for `tf.compat.v1.Session` whose values must not depend on how tensors travel.

Each case builds a graph of its own and returns a flat list of values, the same ones in every run:
what several clients do at once is put in order. Those that train are in
`training_cases.py`.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.sessions import training_cases as session_training_cases  # noqa: F401  (registers its cases)
from tests.cluster.sessions.bench import (
    CASES,
    PLAIN_PS,
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

__all__ = ["CASES", "PLAIN_PS", "Bench"]

v1 = tf.compat.v1

# --- What a session can do ---------------------------------------------------------------------


@case
def feeds_and_fetches(bench: Bench) -> list[Any]:
    """One session, many signatures: each is pruned and registered as a graph of its own."""
    with on_worker():
        v = variables(6, 3)
        doubled = [x * 2.0 for x in v]
        total = tf.add_n(doubled, name="total")
        with tf.device(ps(0)):
            far = tf.tanh(total, name="far")
            other = tf.identity(total - 1.0, name="other")
        near = far + other
        update = v1.assign_add(v[0], near)
    ones = np.ones(3, np.float32)
    with bench.started() as session:
        values = []
        for fetches, feed in (
            (near, {}),
            ({"near": near, "far": far, "first": v[0], "none": update.op}, {}),
            ([v[1], v[2].op, doubled[3]], {}),
            ((near, total), {total: ones}),  # A tensor that would cross.
            ([near, far], {far: ones, other: ones * 2}),  # Tensors that have crossed.
            (near, {doubled[0]: ones, doubled[5]: ones}),
            ([total, total, near], {}),
            (update, {v[1]: ones}),
            ([], {}),
            (near, {}),
        ):
            values += tf.nest.flatten(session.run(fetches, feed or None))
        # What was fetched first must not have changed since.
        call = session.make_callable([near, far], feed_list=[total])
        values += [*call(ones), *call(ones * 3)]
        uninitialized = session.run(v1.report_uninitialized_variables())
    return [value for value in [*values, uninitialized] if value is not None]


@case
def partial_run(bench: Bench) -> list[Any]:
    """Fed and fetched bit by bit; a fetch must come before what it does not need is fed."""
    with on_worker():
        a, b, c = (v1.placeholder(tf.float32, [3], name=n) for n in "abc")
        v = variables(6, 3)
        with tf.device(ps(0)):
            from_a = [tf.tanh(a * x) for x in v[:3]]
            from_b = [tf.tanh(b * x) for x in v[:3]]
            from_c = [tf.square(c - x) for x in v[:2]]
        first = tf.add_n(from_a) + v[3]
        second = tf.add_n(from_b) + first + v[4]
        third = tf.add_n([*from_a, *from_b, *from_c]) + second + v[5]
    values = []
    with bench.started() as session:
        for seed in range(2):
            x = [numbers(seed + i, 3) for i in range(3)]
            setup = session.partial_run_setup([first, second, third], [a, b, c])
            values.append(session.partial_run(setup, first, {a: x[0]}))
            values.append(session.partial_run(setup, second, {b: x[1]}))
            values.append(session.partial_run(setup, third, {c: x[2]}))
            # The other way round: what is fed first is fetched first.
            setup = session.partial_run_setup([second, third], [a, b, c])
            values.append(session.partial_run(setup, second, {a: x[2], b: x[0]}))
            values.append(session.partial_run(setup, third, {c: x[1]}))
        values.append(session.run(third, {a: x[0], b: x[1], c: x[2]}))
    return values


def _received(metadata: Any) -> list[str]:
    """What the tasks' worker caches recorded of a step."""
    return [
        node.timeline_label
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if node.node_name == "RecvTensor"
    ]


@case
def traced_runs(bench: Bench) -> list[Any]:
    """RunOptions with tracing: the values, and the tasks in the RunMetadata."""
    graph = training_graph(v1.train.GradientDescentOptimizer(0.01))
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    values = []
    received: list[str] = []
    with bench.started() as session:
        for i in range(3):
            values += session.run(
                [graph["loss"], graph["train"]],
                batch(graph, i),
                options=options if i else None,
                run_metadata=metadata if i else None,
            )[:1]
            received += _received(metadata)
        # A task that begins a step before it hears that the step is recorded records nothing:
        # TensorFlow's master does not wait. Two servers, there and back.
        kind = r" tensors \(fused\) from " if bench.reading() else " from "
        for _ in range(50):
            recorded = [label for label in received if re.search(kind, label)]
            if len({label.split(" from ")[1] for label in recorded}) == 4:
                break
            fetches = [graph["loss"], graph["train"]]
            session.run(fetches, batch(graph, 0), options=options, run_metadata=metadata)
            received += _received(metadata)
    traced = {d.device for d in metadata.step_stats.dev_stats if d.node_stats}
    partitions = {n.device for g in metadata.partition_graphs for n in g.node}
    bench.told |= {"traced": sorted(traced), "partitions": sorted(partitions)}
    bench.told["received"] = received
    return values


@case
def checkpoints(bench: Bench) -> list[Any]:
    """What a session saves; a session without the option reads it, and the other way round."""
    graph = training_graph(v1.train.AdamOptimizer(0.01))
    saver = v1.train.Saver(sharded=True)
    plain = v1.ConfigProto()
    with tempfile.TemporaryDirectory() as folder:
        with bench.started() as session:
            session.run(graph["train"], batch(graph, 0))
            path = saver.save(session, str(Path(folder) / "of_this"), write_meta_graph=False)
            expected = all_variables(session)
        with v1.Session(bench.target(), config=plain) as session:
            saver.restore(session, path)
            same = all_variables(session)
            assert all(map(np.array_equal, expected, same))
            session.run(graph["train"], batch(graph, 1))
            path = saver.save(session, str(Path(folder) / "of_stock"), write_meta_graph=False)
        with bench.session() as session:
            saver.restore(session, path)
            after = all_variables(session)
        reader = tf.train.load_checkpoint(path)
        keys = sorted(reader.get_variable_to_shape_map())
        return [*same, *after, np.array(keys), *(reader.get_tensor(key) for key in keys)]


def _recovering(session: Any, fetches: list[Any], feeds: dict[Any, Any]) -> list[Any]:
    """Runs a step; once more where a server's restart came as a cancellation.

    Of a step's errors TensorFlow tells the first. Behind a restart that is either "aborted", which
    a MonitoredTrainingSession recovers from, or that what another task asked for is cancelled.
    """
    try:
        return session.run(fetches, feeds)
    except tf.errors.CancelledError:
        return session.run(fetches, feeds)


@case
def recovery(bench: Bench) -> list[Any]:
    """A server is killed and restarted between two steps; a MonitoredTrainingSession goes on.

    Tells what the worker, which lives on, has counted after each step.
    """
    graph = training_graph(v1.train.MomentumOptimizer(0.01, 0.9))
    values = []
    readings = bench.told["worker"] = []
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "save_checkpoint_steps": 1}
        with bench.monitored(**options) as session:
            for i in range(4):
                values += _recovering(session, [graph["loss"], graph["train"]], batch(graph, i))[:1]
                readings.append(bench.reading().get("worker:0"))
                if i == 1 and bench.with_faults:
                    bench.cluster.restart("ps:1")
            return [*values, *session.run(v1.global_variables())]


@case
def plain_server(bench: Bench) -> list[Any]:
    """One of three servers lacks the plugin; it sends and receives like the others."""
    with on_worker(servers=3):
        v = variables(9, 3)
        x = tf.add_n([tf.tanh(y) for y in v])
        with tf.device(ps(PLAIN_PS)):
            far = tf.add_n([x, *[y * 2.0 for y in v]])
        updates = [y.assign_sub(0.1 * (far + float(i))) for i, y in enumerate(v)]
    with bench.started() as session:
        values = [y for _ in range(3) for y in session.run([x, far, *updates])]
        return [*values, *all_variables(session)]


@case
def iterators(bench: Bench) -> list[Any]:
    """A tf.data iterator on the worker, initialized in the session."""
    with on_worker():
        dataset = tf.data.Dataset.from_tensor_slices(numbers(0, 6, 3)).batch(2)
        iterator = v1.data.make_initializable_iterator(dataset)
        element = iterator.get_next()
        v = variables(5, 3)
        total = tf.add_n([x * element for x in v])
    with bench.started() as session:
        session.run(iterator.initializer)
        values = [session.run(total)]
        try:
            while True:
                values.append(session.run(total))
        except tf.errors.OutOfRangeError as error:
            return [*values, np.array([type(error).__name__])]


@case
def errors(bench: Bench) -> list[Any]:
    """A failing op on a server: type and code of the error; the session goes on."""
    with on_worker():
        v = variables(4, 3)
        x = v1.placeholder(tf.float32, [3])
        with tf.device(ps(0)):
            checked = [tf.debugging.check_numerics(x * y, "not a number") for y in v]
        total = tf.add_n([c * 2.0 for c in checked])
    values = []
    with bench.started() as session:
        values.append(session.run(total, {x: numbers(0, 3)}))
        try:
            session.run(total, {x: [1.0, np.nan, 2.0]})
        except tf.errors.InvalidArgumentError as error:
            values.append(np.array([type(error).__name__, str(error.error_code)]))
        values.append(session.run(total, {x: numbers(1, 3)}))
    return values


# --- Control flow and types --------------------------------------------------------------------


@contextlib.contextmanager
def control_flow(version: int) -> Iterator[None]:
    before = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if version == 2 else v1.disable_control_flow_v2)()
    try:
        yield
    finally:
        (v1.enable_control_flow_v2 if before else v1.disable_control_flow_v2)()


def _cond(bench: Bench, version: int) -> list[Any]:
    """Conditionals whose branches read and update variables on both servers, nested too."""
    with control_flow(version), on_worker():
        # The last is updated, and read by none: a run's updates and other reads have no order.
        v = variables(9, 3)
        x = v1.placeholder(tf.float32, [])

        def read(*which: int) -> Any:
            return tf.add_n([v[i] * float(i + 1) for i in which])

        def update() -> Any:
            with tf.control_dependencies([v[8].assign_add(read(5, 6))]):
                return read(1, 2)

        inner = v1.cond(x > 3.0, update, lambda: read(3, 4))
        outer = v1.cond(
            x > 1.0,
            lambda: v1.cond(x > 2.0, lambda: read(0, 1, 2), lambda: read(5)) + read(6, 7),
            lambda: read(2, 3),
        )
        total = inner * 2.0 + outer + read(0, 7)
    with bench.started() as session:
        values = [session.run(total, {x: i}) for i in (0.5, 1.5, 2.5, 3.5, 0.5)]
        return [*values, *all_variables(session)]


@case
def cond_v1(bench: Bench) -> list[Any]:
    return _cond(bench, 1)


@case
def cond_v2(bench: Bench) -> list[Any]:
    return _cond(bench, 2)


def _while(bench: Bench, version: int) -> list[Any]:
    """A loop whose body reads variables and computes on a server, and reads behind it."""
    with control_flow(version), on_worker():
        v = variables(6, 3)
        limit = v1.placeholder(tf.int32, [])

        def body(i: Any, x: Any) -> Any:
            with tf.device(ps(0)):
                far = tf.tanh(x + 0.5)
            return i + 1, far + v[0] * v[1]

        count, x = v1.while_loop(
            lambda i, _: i < limit, body, (tf.constant(0), tf.add_n(v[2:])), parallel_iterations=4
        )
        total = tf.add_n([y * x for y in v])
    with bench.started() as session:
        return [y for n in (0, 1, 7) for y in session.run([count, x, total], {limit: n})]


@case
def while_v1(bench: Bench) -> list[Any]:
    return _while(bench, 1)


@case
def while_v2(bench: Bench) -> list[Any]:
    return _while(bench, 2)


@case
def strings(bench: Bench) -> list[Any]:
    """Strings that cross, beside numbers of several types."""
    with on_worker():
        with tf.device(ps(0)):
            text = v1.placeholder(tf.string, [None])
            parts = [tf.strings.join([text, str(i)]) for i in range(3)]
            lengths = [tf.strings.length(p) for p in parts]
            flags = [tf.equal(n % 2, 0) for n in lengths]
        joined = tf.strings.join(parts, "|")
        total = tf.add_n([tf.identity(n) for n in lengths])
        both = tf.logical_and(flags[0], flags[1])
    with bench.session() as session:
        return session.run([joined, total, both], {text: ["a", "", "ä\0b", "x" * 1000]})


@case
def bfloat16_on_the_wire(bench: Bench) -> list[Any]:
    """graph_options.enable_bfloat16_sendrecv: the partitioner casts what crosses."""
    with on_worker():
        v = variables(6, 5)
        total = tf.add_n([x * 2.0 for x in v])
    config = bench.config() or v1.ConfigProto()
    config.graph_options.enable_bfloat16_sendrecv = True
    with v1.Session(bench.target(), config=config) as session:
        session.run(v1.global_variables_initializer())
        return [session.run(total)]
