# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions whose updates are one operation each have the bits of stock TensorFlow."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow.python.eager import context as context_module

import tf_fuse  # noqa: F401
from tf_fuse.shard_update import hook, outline
from tf_fuse.shard_update.program import ProgramMaker

_SHAPES = ([2048], [5, 7, 3], [1], [3, 1])


@pytest.fixture(autouse=True)
def _off():
    yield
    _switch(False)


def _switch(on):
    tf.config.optimizer.set_experimental_options({"fuse_weight_update": on})


def _decisions():
    return hook.fuser_of(context_module.context()).decisions


def _outlines(run):
    """What is decided of functions while something runs."""
    count = len(_decisions())
    _switch(True)
    result = run()
    _switch(False)
    return result, [decision.outline for decision in _decisions()[count:]]


def _bits(values):
    return [np.asarray(value).tobytes() for value in values]


def _cones(outlines):
    return sum(len(one.cones) for one in outlines)


def _reasons(outlines):
    return {left.reason for one in outlines for left in one.left}


# --- Optimizers -------------------------------------------------------------------------------


def _keras(name, **args):
    return lambda: getattr(tf.keras.optimizers, name)(0.01, **args)


def _tf_keras(name, legacy=False, **args):
    def make():
        import tf_keras

        module = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers
        return getattr(module, name)(0.01, **args)

    return make


def _variables_of(optimizer):
    found = optimizer.variables
    return found() if callable(found) else found


def _trained(make, returns, shapes=_SHAPES, dtype="float32", steps=3):
    """All variables after some steps."""
    rng = np.random.default_rng(7)
    weights = [tf.Variable(rng.standard_normal(shape), dtype=dtype) for shape in shapes]
    optimizer = make()
    if hasattr(optimizer, "build"):
        optimizer.build(weights)

    @tf.function(autograph=False)
    def step(*gradients):
        optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))
        return gradients[0][0] if returns else None

    for _ in range(steps):
        step(*[tf.constant(rng.standard_normal(shape), dtype) for shape in shapes])
    return [tf.convert_to_tensor(v).numpy() for v in [*weights, *_variables_of(optimizer)]]


_MAKERS = {
    **{
        f"keras {name}": _keras(name)
        for name in (
            "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Lion",
            "Ftrl", "Lamb", "Adafactor",
        )
    },
    **{
        f"tf_keras {name}": _tf_keras(name)
        for name in (
            "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Lion",
            "Ftrl", "Adafactor",
        )
    },
    "keras momentum": _keras("SGD", momentum=0.9),
    "keras nesterov": _keras("SGD", momentum=0.9, nesterov=True),
    "keras amsgrad": _keras("Adam", amsgrad=True),
    "keras centered": _keras("RMSprop", centered=True, momentum=0.9),
    "keras clipvalue": _keras("Adam", clipvalue=0.5, weight_decay=0.1),
    "keras clipnorm": _keras("Adam", clipnorm=0.5),
    "keras global_clipnorm": _keras("SGD", global_clipnorm=0.5, momentum=0.9),
    "keras ema": _keras("Adam", use_ema=True, ema_overwrite_frequency=2),
    "tf_keras ema": _tf_keras("SGD", use_ema=True, momentum=0.9, jit_compile=False),
}  # fmt: skip


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("name", sorted(_MAKERS))
def test_optimizers(name, returns):
    stock = _trained(_MAKERS[name], returns)
    ours, outlines = _outlines(lambda: _trained(_MAKERS[name], returns))
    assert _bits(ours) == _bits(stock)
    if name not in _LEFT:
        assert _cones(outlines) >= 2, _reasons(outlines)
    assert _reasons(outlines) <= outline.REASONS.keys()


# Grappler looks from the update into the scaling of the gradient.
_LEFT = {"keras clipnorm", "keras global_clipnorm"}


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("name", ["keras Adam", "keras AdamW", "keras Adamax", "keras clipnorm"])
def test_one_weight(name, shape, returns):
    """Without others, Grappler sees that nothing else reads a rate."""
    stock = _trained(_MAKERS[name], returns, [shape])
    ours, outlines = _outlines(lambda: _trained(_MAKERS[name], returns, [shape]))
    assert _bits(ours) == _bits(stock)
    assert _cones(outlines) == (shape != [1] and name not in _LEFT)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adamax"])
def test_types(name, dtype):
    stock = _trained(_keras(name), True, dtype=dtype)
    ours, outlines = _outlines(lambda: _trained(_keras(name), True, dtype=dtype))
    assert _bits(ours) == _bits(stock)
    assert _reasons(outlines) <= outline.REASONS.keys()


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "Adagrad"])
def test_legacy_optimizers_have_one_operation_already(name):
    make = _tf_keras(name, legacy=True)
    stock = _trained(make, True)
    ours, outlines = _outlines(lambda: _trained(make, True))
    assert _bits(ours) == _bits(stock)
    assert _cones(outlines) == 0


@pytest.mark.parametrize("name", ["Adam", "GradientDescent", "Momentum", "RMSProp"])
def test_optimizers_of_tensorflow_1(name):
    args = {"momentum": 0.9} if name == "Momentum" else {}

    def trained():
        rng = np.random.default_rng(3)
        w = tf.Variable(rng.standard_normal(100), dtype=tf.float32)
        optimizer = getattr(tf.compat.v1.train, f"{name}Optimizer")(0.01, **args)

        @tf.function(autograph=False)
        def step(gradient):
            optimizer.apply_gradients([(gradient, w)])

        for _ in range(3):
            step(tf.constant(rng.standard_normal(100), tf.float32))
        return [v.numpy() for v in [w, *optimizer.variables()]]

    stock = trained()
    ours, _ = _outlines(trained)
    assert _bits(ours) == _bits(stock)


# --- Functions --------------------------------------------------------------------------------


class _Job:
    """A weight, a slot, a scalar."""

    def __init__(self, shape=(5, 7, 3), dtype=tf.float32):
        rng = np.random.default_rng(1)
        self.w = tf.Variable(rng.standard_normal(shape), dtype=dtype)
        self.m = tf.Variable(np.abs(rng.standard_normal(shape)), dtype=dtype)
        self.s = tf.Variable(0.7, dtype=dtype)

    def update(self, g):
        """Constants in chains, a quotient by a square root, a cube."""
        x = 0.3 * (0.7 * (g * 0.1))
        self.m.assign(0.9 * self.m + 0.1 * tf.pow(0.3 * g, 3.0))
        self.w.assign_sub(x * (self.m * 0.01) / (0.3 + (tf.sqrt(self.m * self.m) + 1e-3)))


def _compared(body, shape=(5, 7, 3), dtype=tf.float32, steps=2):
    """Runs a function of a job and a gradient with stock and with ours; returns the outlines."""

    def run():
        job = _Job(shape, dtype)
        rng = np.random.default_rng(2)
        function = tf.function(lambda g: body(job, g), autograph=False)
        told = []
        for _ in range(steps):
            gradient = tf.constant(rng.standard_normal(shape), dtype)
            told += [t.numpy() for t in tf.nest.flatten(function(gradient)) if t is not None]
        return [*told, job.w.numpy(), job.m.numpy(), job.s.numpy()]

    stock = run()
    ours, outlines = _outlines(run)
    assert _bits(ours) == _bits(stock)
    return outlines


def _scalar_root(job, g):
    job.w.assign_sub(0.1 * g / tf.sqrt(tf.reduce_sum(g * g)))


def _scalar_root_of_two(job, g):
    root = tf.sqrt(tf.reduce_sum(g * g))
    job.w.assign_sub(0.1 * g / root)
    job.m.assign_sub(0.1 * job.m / root)


def _scalar_root_read_elsewhere(job, g):
    root = tf.sqrt(tf.reduce_sum(g * g))
    job.w.assign_sub(0.1 * g / root)
    job.s.assign(root)


def _scalar_sum(job, g):
    job.w.assign(0.1 + (job.w + (tf.reduce_sum(g) + 0.3)))


def _scalar_product(job, g):
    job.w.assign_sub(0.1 * (g * (0.3 * tf.reduce_sum(g))))


def _product_read_elsewhere(job, g):
    x = g * 0.3
    job.w.assign_sub(0.1 * x)
    job.s.assign(tf.reduce_sum(x))


def _root_read_elsewhere(job, g):
    x = tf.sqrt(job.m)
    job.w.assign_sub(0.1 * g / x)
    job.s.assign(tf.reduce_sum(x))


def _hoisted(job, g):
    x, y = job.m * g, job.w * g
    job.w.assign(x + y)
    job.s.assign(tf.reduce_sum(x))


def _broadcasts(job, g):
    a, b = tf.reduce_sum(g), tf.reduce_max(g)
    job.w.assign_sub(a * (g * (b * (job.m * 0.3))))


def _powers(job, g):
    total = g
    for exponent in (2.0, 3.0, 0.5, -0.5, -1.0, 1.0, 1.7):
        total = total * (tf.pow(job.m, exponent) + 0.1)
    job.w.assign_sub(total)


def _ones(job, g):
    job.w.assign_sub(g * tf.pow(job.m, 0.0))


def _accumulated(job, g):
    job.m.assign_add(g)
    good = tf.cast(tf.reduce_sum(g) > 0, tf.float32)
    job.w.assign_sub(0.3 * good * job.m)
    job.m.assign(job.m * (1 - good))


def _read_by_no_one(job, g):
    x = 0.3 * job.m
    tf.square(x)
    job.w.assign_sub(x * 0.1)


def _unrolled(job, g):
    for _ in range(5):
        job.m.assign(0.9 * job.m + g * 0.1)
        job.w.assign_sub(job.m * 0.01)


_FUSED = [
    _accumulated, _broadcasts, _hoisted, _ones, _powers, _product_read_elsewhere, _read_by_no_one,
    _root_read_elsewhere, _scalar_product, _scalar_root, _scalar_root_of_two,
    _scalar_root_read_elsewhere, _scalar_sum, _unrolled,
]  # fmt: skip


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("body", _FUSED)
def test_what_grappler_changes(body, returns):
    def whole(job, g):
        body(job, g)
        return g[0, 0, 0] if returns else None

    outlines = _compared(whole)
    # (Where Grappler adds constants up, it is not known where they stay without results.)
    assert (_cones(outlines) >= 1) == (returns or body not in (_read_by_no_one, _scalar_sum))


def _nested(how, inner_returns, returns, scaled):
    def body(job, g):
        if not hasattr(job, "step"):

            def step(g):
                job.update(g)
                return g[0, 0, 0] if inner_returns else None

            job.step = tf.function(step, autograph=False)
        given = 0.33 * g if scaled else g
        if how == "call":
            job.step(given)
        elif how == "cond":
            tf.cond(tf.reduce_sum(g) > 0, lambda: (job.step(given), 1.0)[1], lambda: 2.0)
        elif how == "while":
            tf.while_loop(lambda i: i < 3, lambda i: (job.step(given), i + 1)[1], [0])
        else:
            tf.while_loop(
                lambda i, x: i < 3, lambda i, x: (job.step(x), [i + 1, x * 0.3])[1], [0, given]
            )
        return g[0, 0, 0] if returns else None

    return body


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("inner_returns", [False, True])
@pytest.mark.parametrize("how", ["call", "cond", "while", "loop variable"])
def test_functions_in_functions(how, inner_returns, returns, scaled):
    outlines = _compared(_nested(how, inner_returns, returns, scaled))
    if how == "call" and returns and not scaled:
        assert _cones(outlines) == 1
    else:  # It depends on what is not in the function.
        assert _reasons(outlines) == {"optimizer"}


@pytest.mark.parametrize("returns", [True, False])
def test_what_is_computed_elsewhere_too(returns):
    """Grappler makes one node of both, and leaves their constants as they are."""

    def body(job, g):
        job.w.assign_sub((g * 0.3) * 0.1)
        job.s.assign(tf.reduce_sum(0.3 * tf.identity(g)))
        return g[0, 0, 0] if returns else None

    assert "optimizer" in _reasons(_compared(body))


def test_what_is_handed_on_with_others():
    """It is the same whenever Grappler looks behind, or it is left."""

    def body(job, g):
        clipped, scaled = tf.identity_n([tf.minimum(g, 0.5), job.m * 0.3])
        job.w.assign_sub(clipped * 0.1)
        job.m.assign_sub(scaled * 0.1)
        return g[0, 0, 0]

    outlines = _compared(body)
    assert (_cones(outlines), _reasons(outlines)) == (1, {"optimizer"})


def test_a_function_that_is_called_in_two_ways():
    def body(job, g):
        if not hasattr(job, "step"):
            job.step = tf.function(job.update, autograph=False)
        job.step(g)
        job.step(0.3 * g)
        return g

    outlines = _compared(body)
    assert (_cones(outlines), _reasons(outlines)) == (1, {"optimizer"})


@pytest.mark.parametrize("is_read", [False, True])
def test_what_an_inner_function_returns(is_read):
    def body(job, g):
        @tf.function(autograph=False)
        def step(g):
            x = 0.3 * g
            job.w.assign_sub(x * 0.1 - job.w * 0.2)
            return x

        x = step(g)
        return x if is_read else g

    assert _reasons(_compared(body)) == {"optimizer"}


def test_a_gradient_from_a_call():
    def body(job, g):
        @tf.function(autograph=False)
        def scaled(x):
            return x * 0.7

        @tf.function(autograph=False)
        def product(x):
            return tf.linalg.matmul(x, tf.ones([3, 3]))

        job.w.assign_sub(0.1 * scaled(g))
        job.m.assign_sub(0.1 * product(g))

    outlines = _compared(body)
    assert (_cones(outlines), _reasons(outlines)) == (1, {"optimizer"})


def test_plain_updates_are_fused_in_branches_and_loops():
    def plain(job, g):
        job.m.assign_add((g - job.m) * 0.1)
        job.w.assign_sub(job.m * job.s / (tf.sqrt(job.m) + 1e-7))
        return tf.constant(1.0)

    def body(job, g):
        tf.cond(tf.reduce_sum(g) > 0, lambda: plain(job, g), lambda: 2.0)
        tf.while_loop(lambda i: i < 3, lambda i: (plain(job, g), i + 1)[1], [0])

    assert _cones(_compared(body)) == 2


def test_the_loss_scale_optimizer():
    def trained():
        rng = np.random.default_rng(3)
        w = tf.Variable(rng.standard_normal([4, 5]), dtype=tf.float32)
        inner = tf.keras.optimizers.Adam(0.01)
        optimizer = tf.keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2)
        optimizer.build([w])
        step = tf.function(lambda g: optimizer.apply([g], [w]), autograph=False)
        for i in range(5):
            gradient = rng.standard_normal([4, 5]) * 1e4
            gradient[0, 0] = np.inf if i == 2 else 1.0
            step(tf.constant(gradient, tf.float32))
        return [tf.convert_to_tensor(v).numpy() for v in [w, *optimizer.variables]]

    stock = trained()
    ours, outlines = _outlines(trained)
    assert _bits(ours) == _bits(stock)
    assert _reasons(outlines) <= outline.REASONS.keys()


def test_frozen_weights():
    def trained():
        keras = tf.keras
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(4)])
        model.build([None, 6])
        model.layers[0].trainable = False
        model.compile("adam", "mse", steps_per_execution=2)
        rng = np.random.default_rng(3)
        x, y = rng.standard_normal([16, 6]), rng.standard_normal([16, 4])
        model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
        return [*model.get_weights(), *[np.asarray(v) for v in model.optimizer.variables]]

    stock = trained()
    ours, outlines = _outlines(trained)
    assert _bits(ours) == _bits(stock)
    assert _cones(outlines) >= 2


# --- What is left -----------------------------------------------------------------------------


def _left(body, **args):
    return _reasons(_compared(body, **args))


def _assigned_first(job, g):
    job.m.assign(0.5 * g + g * g)


def _row(job, g):
    job.w.assign_sub(0.5 * g[0] * g[0, 0])


def _sum_of_three(job, g):
    job.w.assign(job.w * 0.5 + tf.add_n([g, g * 0.3, g * 0.7]) * 0.1)


def _sum_of_three_by_grappler(job, g):
    job.w.assign((g + job.w) + job.m * 0.1)


def _sum(job, g, order):
    """Assigns a sum of what has a letter each."""
    made = {
        "g": lambda: g,
        "v": lambda: job.w.read_value(),
        "w": lambda: job.w.read_value(),
        "x": lambda: job.m * 0.3,
        "y": lambda: g * 0.7,
        "z": lambda: tf.sqrt(job.m) * g,
    }
    total = made[order[0]]()
    for one in order[1:]:
        total += made[one]()
    job.w.assign(total)


def _plus(job, g):
    job.w.assign_add(g)


def _matmul(job, g):
    job.w.assign(job.w + 0.0)
    job.m.assign(tf.sort(g))


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        (_assigned_first, {"not_read"}),
        (_plus, {"not_elementwise"}),
        (_sum_of_three_by_grappler, {"optimizer"}),
    ],
)
def test_reasons(body, reasons):
    assert _left(body) == reasons


# Sums to which it makes no difference, or does, whether `g` and what is read may be added to.
_KNOWN = ["wxy", "xwy", "yxw", "xyzw", "wyxz"]
_NOT_KNOWN = ["gwx", "wgx", "xgw", "wvy", "wvx", "gxwy"]


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("order", _KNOWN + _NOT_KNOWN)
def test_sums(order, is_copied):
    """A variable that was read by rows is copied when it is read, so its copy may be added to."""

    def body(job, g):
        if is_copied:
            with tf.init_scope():
                job.w.sparse_read([0])
        _sum(job, g, order)
        return g[0, 0, 0]

    assert _cones(_compared(body)) == (order in _KNOWN)


def test_sums_of_many_stay_in_front():
    assert _cones(_compared(_sum_of_three)) == 1


def test_a_shape_that_is_not_known():
    v = tf.Variable(tf.ones([2]), shape=tf.TensorShape(None))
    function = tf.function(lambda: v.assign(v * 2.0 + 1.0), autograph=False)
    _, outlines = _outlines(function)
    assert _reasons(outlines) == {"unknown_shape"}
    assert v.numpy().tolist() == [3.0, 3.0]


def test_more_operations_than_one_can_have(monkeypatch):
    monkeypatch.setattr("tf_fuse.shard_update.program._MOST_VALUES", 20)
    assert _left(_unrolled) == {"too_many"}


def test_programs_have_the_limit_of_the_operation():
    from tf_fuse.shard_update import program

    text = (tf_fuse_root() / "cc" / "update" / "program.cc").read_text()
    assert f"kMostValues = {program._MOST_VALUES};" in text


def tf_fuse_root():
    from pathlib import Path

    return Path(__file__).resolve().parents[2]


def test_broadcasts_are_left_alone():
    def body(job, g):
        job.w.assign_sub(0.5 * (g * tf.reduce_sum(g, axis=0)))

    _compared(body)


def test_what_a_program_may_have():
    rules = ProgramMaker(lambda: None).rules
    assert rules.is_flat and rules.needs_value
    assert rules.has("Mul", 1, 1) and rules.has("AddN", 1, 1) and rules.has("Reshape", 1, 1)
    assert not rules.has("MatMul", 1, 1) and not rules.has("Cast", 1, 14)


# --- Random -----------------------------------------------------------------------------------

_numbers = st.integers(0, 30)
_constants = st.sampled_from([0.1, 0.3, 0.7, 1.0, 2.0, 3.0, -1.0, 0.5])
_steps = st.one_of(
    st.tuples(
        st.sampled_from(["add", "subtract", "multiply", "divide", "max"]), _numbers, _numbers
    ),
    st.tuples(st.sampled_from(["+c", "c+", "*c", "c*", "-c", "c-", "/c", "c/", "**c"]),
              _numbers, _constants),
    st.tuples(st.sampled_from(["+k", "k+", "*k", "k*", "-k", "k-", "/k", "k/"]),
              _numbers, _constants),
    st.tuples(st.sampled_from(["sqrt", "square", "negative", "abs", "rsqrt", "sum"]), _numbers),
    st.tuples(st.sampled_from(["assign", "assign_add", "assign_sub"]), st.integers(0, 1), _numbers),
)  # fmt: skip


def _random_body(steps, returns):
    two = {"+c": lambda a, c: a + c, "c+": lambda a, c: c + a, "*c": lambda a, c: a * c,
           "c*": lambda a, c: c * a, "-c": lambda a, c: a - c, "c-": lambda a, c: c - a,
           "/c": lambda a, c: a / c, "c/": lambda a, c: c / a, "**c": tf.pow,
           "max": tf.maximum, "divide": tf.divide, "add": tf.add,
           "subtract": tf.subtract, "multiply": tf.multiply}  # fmt: skip

    def body(job, g):
        made = [g, job.w.read_value(), job.m.read_value(), job.s.read_value()]
        for kind, number, *other in steps:
            tensor = made[-1 - number % len(made)]
            if kind.startswith("assign"):
                variable = (job.w, job.m)[number]
                value = made[-1 - other[0] % len(made)]
                if value.shape == variable.shape:
                    getattr(variable, kind)(value)
                    made.append(variable.read_value())
            elif kind == "sum":
                made.append(tf.reduce_sum(tensor))
            elif kind.startswith("k") or kind.endswith("k"):
                constant = 1.7 - tf.constant(other[0])  # (Grappler makes one of them.)
                made.append(two[kind.replace("k", "c")](tensor, constant))
            elif kind.startswith("c") or kind.endswith("c"):
                made.append(two[kind](tensor, other[0]))
            elif other:
                made.append((two.get(kind) or getattr(tf, kind))(tensor, made[-1 - other[0] % 4]))
            else:
                made.append(getattr(tf.math, kind)(tensor))
        value = next(tensor for tensor in reversed(made) if tensor.shape == g.shape)
        job.w.assign_sub(value * 0.1)
        return made[-1] if returns else None

    return body


@settings(
    deadline=None,
    max_examples=int(os.environ.get("TF_FUSE_TEST_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(_steps, min_size=2, max_size=12), st.booleans())
def test_random_functions(steps, returns):
    _compared(_random_body(steps, returns), shape=(3, 4))
