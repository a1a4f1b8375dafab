# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gathers and products that are rewritten keep every path that a program can ask for.

Gathers from variables of this process are rewritten here as those of parameter servers are;
`tests/cluster/all_passes/test_gradient_programs.py` draws programs and runs them on a cluster.
"""

import itertools
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.eager import record

import tf_fuse  # noqa: F401  (adds the options)
from tests.unit.parameter_server.lookups.test_matmul import needed
from tf_fuse._tensorflow.graphs import rewrite_after_trace
from tf_fuse.parameter_server.lookups import server_gather

_OPTIONS = ("shard_weight_update", "split_matmuls")
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _every_variable_is_remote(monkeypatch):
    monkeypatch.setattr(server_gather, "_is_remote", lambda read: True)
    yield
    _set(False)


def _set(on):
    tf.config.optimizer.set_experimental_options(dict.fromkeys(_OPTIONS, on))


class _Variables:
    """A table, whole and in pieces, and ids of its rows."""

    def __init__(self):
        value = np.arange(24.0, dtype=np.float32).reshape(6, 4)
        self.table = tf.Variable(value)
        self.pieces = ShardedVariable([tf.Variable(part) for part in np.split(value, 3)])
        self.kernel = ShardedVariable([tf.Variable(part) for part in np.split(value[:4], 2)])
        self.ids = tf.constant([[0, 5], [2, 2]])

    def of(self, kind):
        return {"whole": self.table, "pieces": self.pieces}[kind]


def _result(body, *args):
    """What a function returns with the options off and on, in NumPy, and what its results need."""
    found = []
    for on in (False, True):
        _set(on)
        function = tf.function(body, autograph=False)
        variables = _Variables()
        graph = function.get_concrete_function(variables, *args).graph
        value = function(variables, *args)
        found.append((tf.nest.map_structure(_plain, value), needed(graph)))
    return found


def _plain(value):
    if isinstance(value, tf.IndexedSlices):
        return ("rows", value.indices.numpy().tolist(), value.values.numpy().tobytes())
    return None if value is None else (str(value.dtype), value.numpy().tobytes())


def _same(body, *args):
    """Compares, and checks that the function was rewritten."""
    (stock, stock_ops), (ours, our_ops) = _result(body, *args)
    assert ours == stock
    assert "ResourceGather" in our_ops and "ResourceGather" not in stock_ops


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_a_watched_intermediate_has_its_gradient(kind):
    def body(variables):
        table = tf.identity(tf.convert_to_tensor(variables.of(kind)))
        with tf.GradientTape() as tape:
            tape.watch(table)
            loss = tf.reduce_sum(tf.gather(table, variables.ids) ** 2)
        gradient = tape.gradient(loss, table)
        return loss, gradient.values, gradient.indices

    _same(body)


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_what_lies_between_the_variable_and_the_rows_has_its_gradient(kind):
    # Of none of these did anybody say that it would be asked for.
    def body(variables):
        with tf.GradientTape(persistent=True) as tape:
            first = tf.identity(tf.convert_to_tensor(variables.of(kind)))
            second = tf.cast(first, tf.float64)
            third = tf.identity(second)
            loss = tf.reduce_sum(tf.gather(third, variables.ids) ** 2)
        sources = [first, second, third]
        pieces = getattr(variables.of(kind), "variables", [variables.of(kind)])
        found = tape.gradient(loss, sources) + tape.gradient(loss, list(pieces))
        return [(one.values, one.indices) for one in found]

    _same(body)


def test_a_tape_that_was_opened_after_the_read_has_no_gradient():
    def body(variables):
        read = variables.table.read_value()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(read, variables.ids))
        assert tape.gradient(loss, variables.table) is None
        return loss

    _same(body)


def test_a_read_that_no_tape_records_has_no_gradient():
    def body(variables):
        with tf.GradientTape() as tape:
            with tape.stop_recording():
                read = variables.table.read_value()
            loss = tf.reduce_sum(tf.gather(read, variables.ids))
        assert tape.gradient(loss, variables.table) is None
        with tf.GradientTape() as tape:
            with record.stop_recording():
                read = tf.identity(variables.table)
            loss += tf.reduce_sum(tf.gather(read, variables.ids))
        assert tape.gradient(loss, variables.table) is None
        return loss

    _same(body)


@pytest.mark.parametrize("stop", [False, True])
def test_gradients_that_follow_the_graph(stop):
    def body(variables):
        read = tf.identity(variables.table)
        loss = tf.reduce_sum(tf.gather(read, variables.ids) ** 2)
        stopped = [read] if stop else None
        found = tf.gradients(loss, [read, variables.table.handle], stop_gradients=stopped)
        assert (found[1] is None) == stop
        return loss, [(one.values, one.indices) for one in found if one is not None]

    _same(body)


def test_forward_gradients():
    def body(variables):
        read = tf.identity(variables.table)
        with tf.autodiff.ForwardAccumulator(read, 2 * tf.ones_like(read)) as accumulator:
            rows = tf.gather(read, variables.ids) ** 2
        return accumulator.jvp(rows)

    (stock, _), (ours, _) = _result(body)
    assert ours == stock != (None,)


@pytest.mark.parametrize("where", ["around", "within"])
def test_custom_gradients(where):
    def body(variables):
        @tf.custom_gradient
        def inner(table):
            rows = tf.gather(tf.identity(table), variables.ids)
            # (It has no argument for variables: that would be asked for if it used one.)
            return rows, lambda upstream: tf.ones([6, 4]) * tf.reduce_sum(upstream)

        @tf.custom_gradient
        def outer(table):
            return tf.identity(table), lambda upstream: 3.0 * tf.convert_to_tensor(upstream)

        with tf.GradientTape() as tape:
            if where == "within":
                rows = inner(tf.identity(variables.table))
            else:
                rows = tf.gather(outer(tf.identity(variables.table)), variables.ids)
            loss = tf.reduce_sum(rows**2)
        return loss, tape.gradient(loss, variables.table)

    (stock, _), (ours, _) = _result(body)
    assert ours == stock and ours[1] is not None


@pytest.mark.parametrize("name", ["Identity", "GatherV2", "ReadVariableOp", "Cast", "ConcatV2"])
def test_operations_with_gradients_of_their_own_stay(name):
    # (These are what the gradient of a function is made of, which comes when it has been traced.)
    registered = f"TfFuseTestOf{name}{next(_numbers)}"

    @tf.RegisterGradient(registered)
    def _own(op, upstream):
        return [None] * len(op.inputs)

    found = []
    for on in (False, True):
        _set(on)
        variables = _Variables()

        def body(variables=variables):
            graph = tf.compat.v1.get_default_graph()
            with graph.gradient_override_map({name: registered}):
                whole = tf.convert_to_tensor(variables.pieces)
                return tf.gather(tf.cast(tf.identity(whole), tf.float64), variables.ids) ** 2

        function = tf.function(body, autograph=False)
        assert "ResourceGather" not in needed(function.get_concrete_function().graph)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function())
        found.append((_plain(loss), tape.gradient(loss, variables.pieces.variables)))
    assert found[0] == found[1] == (found[0][0], [None] * 3)


def test_checks_that_a_program_waits_for_are_run():
    def body(variables, limit):
        check = tf.debugging.check_numerics(limit, "the limit")
        with tf.control_dependencies([check]):
            read = tf.identity(variables.table)
        return tf.gather(read, variables.ids)

    _same(body, tf.constant(1.0))
    for on in (False, True):
        _set(on)
        with pytest.raises(tf.errors.InvalidArgumentError, match="the limit : Tensor had NaN"):
            tf.function(body, autograph=False)(_Variables(), tf.constant(np.nan))


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_rows_are_gathered_before_what_is_written_later(kind):
    def body(variables):
        parts = getattr(variables.of(kind), "variables", [variables.of(kind)])
        rows = tf.gather(tf.convert_to_tensor(variables.of(kind)), variables.ids)
        for one in parts:
            one.assign_add(2 * tf.ones_like(one))
        return rows, tf.convert_to_tensor(variables.of(kind))

    for _ in range(5):
        _same(body)


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_the_terms_of_a_sum_keep_their_order(kind):
    """Grappler makes one sum of a chain of additions, in the order of the terms' names."""

    def body(variables, others):
        total = tf.zeros([2, 4])
        for number, other in enumerate(tf.unstack(others)):
            with tf.name_scope("fzbxdv"[number]):
                table = tf.convert_to_tensor(variables.of(kind))
                rows = tf.gather(table, variables.ids[number % 2])
            total = total + rows + tf.tanh(other, name="pagqwc"[number])
        return total

    others = tf.constant(np.random.default_rng(1).standard_normal([6, 2, 4]), tf.float32)
    _same(body, others)


def test_rows_in_branches_and_loops():
    def body(variables, flag):
        def rows():
            return tf.gather(tf.identity(variables.table), variables.ids)

        def added(i, total):
            return i + 1, total + rows()

        with tf.GradientTape() as tape:
            branch = tf.cond(flag, rows, lambda: 2.0 * rows())
            _, total = tf.while_loop(lambda i, _: i < 3, added, [0, branch])
            loss = tf.reduce_sum(total**2)
        gradient = tape.gradient(loss, variables.table)
        return loss, tf.convert_to_tensor(gradient)

    for flag in (False, True):
        (stock, _), (ours, _) = _result(body, tf.constant(flag))
        assert ours == stock


def test_a_graph_that_is_cut_later_is_left_alone():
    # `wrap_function` makes functions of any of its tensors, as of what lies before a gather.
    def wrapped(on):
        _set(on)
        variables = _Variables()

        def body():
            read = tf.identity(variables.table, name="read")
            return tf.identity(tf.gather(read, variables.ids), name="rows")

        graph = tf.compat.v1.wrap_function(body, [])
        names = [f"{name}:0" for name in ("read", "rows")]
        fed = graph.prune(*[graph.graph.get_tensor_by_name(name) for name in names])
        return fed(tf.zeros([6, 4])).numpy().tolist()

    assert wrapped(True) == wrapped(False) == np.zeros([2, 2, 4]).tolist()


def test_a_watched_operand_of_a_product_has_its_gradient():
    def body(variables):
        kernel = tf.identity(tf.convert_to_tensor(variables.kernel))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(kernel)
            kernel_2 = tf.identity(kernel)
            loss = tf.reduce_sum(tf.matmul(tf.ones([2, 4]), kernel_2) ** 2)
        return loss, tape.gradient(loss, [kernel, kernel_2])

    (stock, stock_ops), (ours, our_ops) = _result(body)
    assert ours == stock
    # The product itself is taken by pieces.
    assert (stock_ops.count("MatMul"), our_ops.count("MatMul")) == (2, 3)


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_a_call_ends_after_its_rows_are_gathered(kind):
    """What writes after the call waits for its control outputs, where the function is inlined."""
    _set(True)
    variables = _Variables()

    @tf.function(autograph=False)
    def rows():
        return tf.gather(tf.convert_to_tensor(variables.of(kind)), variables.ids)

    graph = rows.get_concrete_function().graph
    gathers = [op for op in graph.get_operations() if op.type == "ResourceGather"]
    assert len(gathers) == {"whole": 1, "pieces": 3}[kind]
    assert set(gathers) <= set(graph.control_outputs)


def test_what_cannot_be_rewritten_stays_and_is_told(monkeypatch, caplog):
    def broken(*args):
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(server_gather, "_rows", broken)

    def body(variables):
        return tf.gather(tf.identity(variables.table), variables.ids)

    (stock, _), (ours, ops) = _result(body)
    assert ours == stock and "ResourceGather" not in ops
    (text,) = [one.getMessage() for one in caplog.records if one.name == "tf_fuse"]
    assert text == ("the operation GatherV2 of body stays unchanged: ZeroDivisionError: of a test")


def test_nothing_is_kept_of_a_graph_that_has_been_traced():
    _set(True)
    variables = _Variables()
    graph = (
        tf.function(lambda: tf.gather(tf.identity(variables.table), [1]))
        .get_concrete_function()
        .graph
    )
    assert getattr(graph, rewrite_after_trace._CHANGES) is None


@pytest.mark.parametrize("kind", ["whole", "pieces"])
def test_a_table_is_not_read_besides(kind):
    """TensorFlow copies a variable that is read if rows were gathered from it before."""

    def body(variables):
        table = variables.of(kind)
        tf.convert_to_tensor(table).shape  # noqa: B018 (a read of no use, as of Keras's layers)
        rows = tf.gather(tf.convert_to_tensor(table), variables.ids)
        for one in getattr(table, "variables", [table]):
            one.assign_add(tf.ones(one.shape))
        return rows

    _same(body)
    _set(True)
    graph = tf.function(body, autograph=False).get_concrete_function(_Variables()).graph
    waited_for = {one for op in graph.get_operations() for one in op.control_inputs}
    waited_for |= set(graph.control_outputs)
    assert "ReadVariableOp" not in {one.type for one in waited_for}
    assert "ResourceGather" in {one.type for one in waited_for}


def test_a_read_that_something_needs_stays():
    def body(variables):
        value = variables.table.read_value()
        check = tf.debugging.assert_less(variables.ids, 6)
        with tf.control_dependencies([check]):
            table = variables.table.read_value()
        rows = tf.gather(table, variables.ids)
        variables.table.assign_add(tf.ones([6, 4]))
        return rows, tf.reduce_sum(value)

    _same(body)
    _set(True)
    graph = tf.function(body, autograph=False).get_concrete_function(_Variables()).graph
    (writer,) = (op for op in graph.get_operations() if op.type == "AssignAddVariableOp")
    waits = [one.type for one in writer.control_inputs]
    assert waits.count("ReadVariableOp") == waits.count("ResourceGather") == 1
    # The write waits for what the read that was left out has waited for.
    assert any("assert" in one.name for one in writer.control_inputs)
