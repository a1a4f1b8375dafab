# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""FunctionCache that are compiled compute the same, in one process."""

import gc
import logging
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.eager import context as context_module
from tensorflow.python.framework import op_def_registry
from tensorflow.python.util import _pywrap_util_port

import tf_fuse  # noqa: F401
from tests import decisions
from tests.slow_cases import slow, slow_but
from tests.unit.fuse_update.compiled_jobs import SHAPE, Job, ones
from tf_fuse.fuse_update.backend import Backend, no_xla
from tf_fuse.fuse_update.encode import xla
from tf_fuse.fuse_update.function_cache import UpdateFuser
from tf_fuse.shard_update import interception


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(xla, "MIN_ELEMENTS", 2)
    with decisions.kept():
        yield
    _switch(False)


def _switch(on):
    tf.config.optimizer.set_experimental_options({"compile_weight_update": on})


def _decisions():
    return interception.compiler_of(context_module.context()).decisions


def _run(body, arguments, on, steps=2):
    """The results of some steps of a new function."""
    _switch(on)
    function = tf.function(body, autograph=False)
    return [function(*arguments) for _ in range(steps)], function


def test_values_before_and_after():
    def results(on):
        job = Job()

        def body(gradient):
            before = tf.reduce_sum(job.w)
            job.update(gradient)
            return before, tf.reduce_sum(job.w), job.m.read_value()

        told, _ = _run(body, [tf.fill(SHAPE, 4.0)], on)
        return [[float(tf.reduce_sum(x)) for x in step] for step in told]

    # m: 5, 6.5; w: 8 - 1.25 = 6.75, 6.75 - 1.625 = 5.125.
    assert results(False) == [[128.0, 108.0, 80.0], [108.0, 82.0, 104.0]]
    count = len(_decisions())
    assert results(True) == results(False)
    assert [len(d.outline.clusters) for d in _decisions()[count:]] == [1]


def test_nested_functions_and_branches():
    job = Job()

    @tf.function(autograph=False)
    def inner(gradient):
        job.update(gradient)

    @tf.function(autograph=False, jit_compile=True)
    def whole(gradient):
        job.update(gradient)

    def skip(gradient):
        job.m.assign(2.0 * gradient)

    def body(gradient, is_good):
        inner(gradient)
        whole(gradient)
        chosen = tf.cond(is_good, lambda: inner(gradient) or 1.0, lambda: skip(gradient) or 2.0)
        return chosen

    count = len(_decisions())
    _switch(True)
    function = tf.function(body, autograph=False)
    gradient = tf.zeros(SHAPE)
    assert float(function(gradient, tf.constant(True))) == 1.0
    # m halves three times from 2, and a quarter of each is taken from w.
    assert float(job.m[0, 0]) == 0.25
    assert float(job.w[0, 0]) == 8 - 0.25 - 0.125 - 0.0625
    assert float(function(gradient + 3.0, tf.constant(False))) == 2.0
    assert float(job.m[0, 0]) == 6.0
    made = {d.function.rpartition("_")[0]: len(d.outline.clusters) for d in _decisions()[count:]}
    assert made["__inference_inner"] == 1
    assert "__inference_whole" not in made
    assert sum(made.values()) == 2


def test_on_and_off_between_calls():
    job = Job()
    function = tf.function(job.update, autograph=False)
    for on in (True, False, True):
        _switch(on)
        function(tf.zeros(SHAPE))
    assert float(job.m[0, 0]) == 0.25


def test_the_rewritten_function_goes_with_its_original():
    context = context_module.context()
    job = Job()
    _, function = _run(job.update, [tf.zeros(SHAPE)], True)
    name = function.get_concrete_function(tf.zeros(SHAPE)).name
    name = name.decode() if isinstance(name, bytes) else name
    rewritten = name + "__tf_fuse_compiled"
    assert context.has_function(rewritten)
    del function
    gc.collect()
    assert not context.has_function(rewritten)


def test_errors_name_the_function():
    variable = tf.Variable(tf.ones(SHAPE), shape=tf.TensorShape([None, 4]))
    other = ones()

    def body(gradient):
        other.assign_add(2.0 * gradient)
        tf.debugging.assert_equal(tf.reduce_sum(variable), 0.0)

    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _run(body, [tf.ones(SHAPE)], True, steps=1)
    assert "__tf_fuse_compiled" not in str(error.value)


def test_without_xla(monkeypatch, caplog):
    context = context_module.context()
    monkeypatch.setattr(_pywrap_util_port, "IsBuiltWithXLA", lambda: False)
    with caplog.at_level(logging.WARNING, "tf_fuse"):
        compiler = UpdateFuser(
            context,
            interception._graphs,
            {},
            Backend("compiled", xla.XlaEncoder(), no_xla),
        )
    assert caplog.messages == [
        "weight updates are not compiled: this TensorFlow is built without XLA."
    ]
    monkeypatch.setattr(context, "_tf_fuse_compiler", compiler)
    job = Job()
    _run(job.update, [tf.zeros(SHAPE)], True)
    assert float(job.m[0, 0]) == 0.5
    assert compiler.decisions == []


_NUMBERS = {
    "float": [0.25, 0.5, 0.75, 1.0, 2.5, 3.0],
    "special": [float("nan"), float("inf"), -float("inf"), 0.0, -3.0, 1e30],
    "int": [1, 2, 3, 4, 5, 6],
    "bool": [True, False, True, True, False, False],
}


def _samples(name, kind):
    """Arguments of an operation; each has the numbers in another order."""
    arguments = {}
    for shift, argument in enumerate(op_def_registry.get(name).input_arg):
        is_bool = argument.type == tf.bool.as_datatype_enum
        chosen = tf.roll(tf.constant(_NUMBERS["bool" if is_bool else kind]), shift, 0)
        arguments[argument.name] = [chosen] * 2 if argument.number_attr else chosen
    if name == "Reshape":
        arguments["shape"] = [2, 3]
    if name == "Select":  # Python has other names for them.
        arguments["x"], arguments["y"] = arguments.pop("t"), arguments.pop("e")
    if name == "Cast":
        arguments["DstT"] = tf.float64
    return arguments


@pytest.mark.parametrize("name", sorted(xla.COMPILED))
def test_xla_has_each_operation(name):
    tried = 0
    for kind in sorted(_NUMBERS):
        arguments = _samples(name, kind)
        operation = getattr(tf.raw_ops, name)
        try:
            stock = operation(**arguments)
        except (TypeError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError):
            continue  # TensorFlow has it not for this type.
        tried += 1
        run = tf.function(lambda: operation(**arguments), jit_compile=True, autograph=False)  # noqa: B023
        for ours, theirs in zip(tf.nest.flatten(run()), tf.nest.flatten(stock), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=4e-7)
    assert tried > 0


_OPTIMIZERS = (
    "SGD", "RMSprop", "Adagrad", "Adam", "AdamW", "Nadam", "Adamax", "Adadelta", "Lion", "Ftrl",
    "Lamb", "Adafactor", "Muon",
)  # fmt: skip


# (A maximum lies between the slots and the weight.)
_LEFT = {"Ftrl"}


def _trained(name, on, **args):
    """The variables of a weight and a bias after three steps."""
    import keras

    rng = np.random.default_rng(7)
    shapes = [[40, 24], [24]]
    weights = [keras.Variable(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]
    optimizer = getattr(keras.optimizers, name)(0.01, **args)
    optimizer.build(weights)
    step = tf.function(lambda *g: optimizer.apply(list(g), weights), autograph=False)
    _switch(on)
    for _ in range(3):
        step(*[tf.constant(rng.standard_normal(shape), tf.float32) for shape in shapes])
    return [np.asarray(v) for v in [*weights, *optimizer.variables]]


_ARGS = {"weight_decay": 0.01, "clipvalue": 0.5}
# Their operations are those of others, and so are their slots.
_ALIKE = ("RMSprop", "Adagrad", "AdamW", "Nadam", "Adadelta", "Lion", "Lamb")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        *slow_but([(name, {}) for name in _OPTIMIZERS], lambda one: one[0] not in _ALIKE),
        *slow_but([(name, _ARGS) for name in _OPTIMIZERS], lambda one: one[0] in ("AdamW", "SGD")),
    ],
)
def test_optimizers(name, args):
    stock = _trained(name, False, **args)
    count = len(_decisions())
    ours = _trained(name, True, **args)
    outlines = [d.outline for d in _decisions()[count:]]
    # (The decay of weights, of _ARGS, is a cluster with every optimizer.)
    assert (sum(len(o.clusters) for o in outlines) >= 2) == (name not in _LEFT or bool(args))
    for mine, theirs in zip(ours, stock, strict=True):
        # What the docs say: units in the last place of the variable's largest element.
        unit = np.spacing(np.abs(theirs).max()) if theirs.dtype == np.float32 else 0
        assert np.abs(mine - theirs).max() <= 16 * unit


_numbers = st.integers(0, 30)
_steps = st.one_of(
    st.tuples(st.just("read"), _numbers),
    st.tuples(st.sampled_from(["add", "sub", "multiply"]), _numbers, _numbers),
    st.tuples(st.sampled_from(["assign", "assign_add", "assign_sub"]), _numbers, _numbers),
    st.tuples(st.just("sum"), _numbers),
    st.tuples(st.just("call"), _numbers, _numbers),
)


class _Program:
    """Random reads, operations and assignments of whole numbers."""

    def __init__(self, steps):
        self.variables = [tf.Variable([i, i + 1, 5 - i], dtype=tf.int64) for i in range(3)]
        self._steps = steps

    def __call__(self, first):
        tensors = [first, 2 * first]
        for kind, *numbers in self._steps:
            variable = self.variables[numbers[0] % 3]
            a, b = (tensors[n % len(tensors)] for n in (numbers[0], numbers[-1]))
            if kind == "read":
                tensors.append(variable.read_value())
            elif kind == "sum":
                tensors.append(tf.reduce_sum(a) + tf.zeros([3], tf.int64))
            elif kind == "call":
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.sort(b))
            elif kind.startswith("assign"):
                getattr(variable, kind)(b)
            else:
                tensors.append(getattr(tf, {"sub": "subtract"}.get(kind, kind))(a, b))
        return tensors[-1]


@pytest.mark.parametrize("examples", [10, slow(40)])
def test_random_programs_compute_the_same(examples):
    @settings(deadline=None, max_examples=examples)
    @given(st.lists(_steps, min_size=3, max_size=14))
    def check(steps):
        def results(on):
            program = _Program(steps)
            told, _ = _run(program, [tf.constant([1, -2, 3], tf.int64)], on)
            return [t.numpy().tolist() for t in [*told, *program.variables]]

        assert results(True) == results(False)

    check()
