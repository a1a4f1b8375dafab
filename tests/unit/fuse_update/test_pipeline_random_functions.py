# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random functions whose updates are one operation each have the bits of stock TensorFlow."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.fuse_update.fused_updates import bits_without_nan_signs, compared

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
    st.tuples(st.sampled_from(["flat square", "flat reverse"]), _numbers),
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
            elif kind.startswith("flat"):
                flat = tf.reshape(tensor, [-1])
                of_flat = tf.square(flat) if kind == "flat square" else tf.reverse(flat, [0])
                made.append(tf.reshape(of_flat, tensor.shape))
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
@example([("sqrt", 2), ("abs", 0), ("add", 0, 1)], False)
@given(st.lists(_steps, min_size=2, max_size=12), st.booleans())
def test_random_functions(steps, returns):
    compared(_random_body(steps, returns), shape=(3, 4), of=bits_without_nan_signs)
