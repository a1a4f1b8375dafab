# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which arguments of a function are marked to be compressed, and with what."""

import re

import keras
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.eager import context

import tf_fuse.parameter_server
from tests.slow_cases import slow
from tf_fuse.parameter_server.lookups import handle_packing


@pytest.fixture(autouse=True)
def fresh_options(monkeypatch):
    """Options of each test start empty, and the process's own come back after it."""
    monkeypatch.setattr(context.context(), "_optimizer_experimental_options", {})


def _set(**options):
    tf.config.optimizer.set_experimental_options(options)


def _definition(body):
    concrete = tf.function(body).get_concrete_function()
    return concrete, context.context().get_function_def(concrete.name)


def _marks(body):
    """The marks of the captured variables, in their order; None where there is none."""
    concrete, definition = _definition(body)
    first = len(definition.signature.input_arg) - len(concrete.graph.captures)
    found = []
    for position in range(first, len(definition.signature.input_arg)):
        attributes = definition.arg_attr[position].attr
        mark = attributes.get("_tf_fuse_compress")
        found.append(mark.s.decode() if mark else None)
    return found


def _kinds(body):
    """The same without what identifies a variable."""
    return [mark and mark.split()[0] for mark in _marks(body)]


def _sum(*variables):
    return lambda: [tf.reduce_sum(tf.cast(one, tf.float64)) for one in variables]


def test_trained_variables_of_float32_are_marked():
    _set(compress="bfloat16")
    trained, other = tf.Variable([1.0]), tf.Variable([1.0], trainable=False)
    wide, number = tf.Variable([1.0], dtype=tf.float64), tf.Variable([1])
    assert _kinds(_sum(trained, other, wide, number)) == ["bfloat16", None, None, None]


@pytest.mark.parametrize("options", [{}, {"compress": ""}, {"compress_variables": "a"}])
def test_nothing_is_marked_unless_asked_for(options):
    _set(compress="bfloat16")
    _set(**{"compress": "", **options})
    assert _kinds(_sum(tf.Variable([1.0]))) == [None]


def test_the_options_stay_in_this_process():
    _set(compress="bfloat16", compress_variables="a")
    assert list(context.context().config.graph_options.rewrite_options.custom_optimizers) == []


def test_names_are_searched():
    _set(compress="bfloat16", compress_variables="^table/|bias$")
    names = ("table/a", "bias", "bias_1", "my_table/a")
    variables = [tf.Variable([1.0], name=name) for name in names]
    assert _kinds(_sum(*variables)) == ["bfloat16", "bfloat16", "float32", "float32"]


def test_an_invalid_pattern_is_an_error():
    text = re.escape("'compress_variables' of tf_fuse is a regular expression, got 'a(': missing )")
    with pytest.raises(ValueError, match=text):
        _set(compress_variables="a(")


def test_paths_of_keras_are_searched():
    # (TensorFlow's variables in the layers are all called "kernel".)
    _set(compress="bfloat16", compress_variables="second/kernel")
    layers = [keras.layers.Dense(2, use_bias=False, name=name) for name in ("first", "second")]
    keras.Sequential([keras.Input([2]), *layers])
    assert _kinds(lambda: [layer.kernel + 1.0 for layer in layers]) == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    ("at_first", "pattern"),
    [(True, ""), (False, "kernel"), slow(True, "kernel"), slow(False, "")],
)
def test_a_layer_of_keras_counts_as_trained_while_it_is(at_first, pattern):
    _set(compress="bfloat16", compress_variables=pattern)
    layer = keras.layers.Dense(2, use_bias=False, trainable=at_first)
    keras.Sequential([keras.Input([2]), layer])
    for now in (at_first, not at_first, at_first):
        layer.trainable = now
        assert _kinds(lambda: layer.kernel + 1.0) == ["bfloat16" if now else None]


def test_a_variable_is_marked_where_only_its_handle_is_used():
    _set(compress="bfloat16")
    variable = tf.Variable([[1.0]])

    def body():
        return tf.raw_ops.ResourceGather(resource=variable.handle, indices=[0], dtype=tf.float32)

    assert _kinds(body) == ["bfloat16"]


def test_pieces_of_a_variable_are_marked():
    _set(compress="bfloat16", compress_variables="table")
    table = ShardedVariable([tf.Variable([[float(i)]], name=f"table/part_{i}") for i in range(2)])
    marks = _marks(lambda: tf.nn.embedding_lookup(table, [0, 1]))
    assert len(set(marks)) == 2 and all(mark.startswith("bfloat16 ") for mark in marks)


def test_a_variable_has_the_same_key_in_all_functions_and_another_one_than_others():
    _set(compress="bfloat16")
    one, other = tf.Variable([1.0], name="same"), tf.Variable([1.0], name="same")
    (first,), (again,) = _marks(_sum(one)), _marks(_sum(one))
    assert first == again
    assert _marks(_sum(other)) != [first]


def test_a_mark_names_the_function_whatever_is_traced_again():
    _set(compress="bfloat16")
    variable = tf.Variable([1.0])

    def step():
        return tf.identity(variable)

    def adversarial_step():
        return tf.identity(variable)

    (one,), (again,), (other,) = _marks(step), _marks(step), _marks(adversarial_step)
    assert one == again and one.endswith("/step") and other.endswith("/adversarial_step")
    for one_step in (step, tf.function(step)):
        repeated = tf_fuse.parameter_server.repeat(one_step, 2).get_concrete_function()
        assert repeated.graph.name == "step"


def test_a_captured_iterator_is_not_a_variable():
    _set(compress="bfloat16")
    iterator, variable = iter(tf.data.Dataset.range(3)), tf.Variable([1.0])
    kinds = _kinds(lambda: (next(iterator), variable.read_value()))
    assert sorted(map(str, kinds)) == ["None"] * (len(kinds) - 1) + ["bfloat16"]


def test_packed_handles_keep_their_marks():
    _set(compress="bfloat16", compress_variables="a")
    variables = [tf.Variable([1.0], name=name) for name in ("a", "b")]
    integers = tf.Variable([1])
    marks = _marks(_sum(*variables, integers))
    _, definition = _definition(_sum(*variables, integers))
    values = {
        position: (kind.as_datatype_enum, tf.TensorShape([1]).as_proto())
        for position, kind in enumerate((tf.float32, tf.float32, tf.int32))
    }
    groups = [("/job:ps/task:0", [0, 1]), ("/job:ps/task:1", [2])]
    packed = handle_packing.packed_definition(definition, groups, values)
    first, second = (node for node in packed.node_def if node.op == "TfFuse>UnpackHandles")
    assert [text.decode() for text in first.attr["_tf_fuse_compress"].list.s] == marks[:2]
    assert "_tf_fuse_compress" not in second.attr
