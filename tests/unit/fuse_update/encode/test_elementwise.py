# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions whose updates are left to stock TensorFlow, and why; what one operation can hold."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.fuse_update.fused_updates import _unrolled, clusters, compared, outlines_of, reasons
from tf_fuse.fuse_update.encode.elementwise import ElementwiseEncoder

# --- What is left -----------------------------------------------------------------------------


def _left(body, **args):
    return reasons(compared(body, **args))


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
    ("body", "why"),
    [
        (_assigned_first, {"not_read"}),
        (_plus, {"not_elementwise"}),
        (_sum_of_three_by_grappler, {"optimizer"}),
    ],
)
def test_reasons(body, why):
    assert _left(body) == why


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

    assert clusters(compared(body)) == (order in _KNOWN)


def test_sums_of_many_stay_in_front():
    assert clusters(compared(_sum_of_three)) == 1


def test_a_shape_that_is_not_known():
    v = tf.Variable(tf.ones([2]), shape=tf.TensorShape(None))
    function = tf.function(lambda: v.assign(v * 2.0 + 1.0), autograph=False)
    _, outlines = outlines_of(function)
    assert reasons(outlines) == {"unknown_shape"}
    assert v.numpy().tolist() == [3.0, 3.0]


def test_more_operations_than_one_can_have(monkeypatch):
    monkeypatch.setattr("tf_fuse.fuse_update.encode.elementwise._MOST_VALUES", 20)
    assert _left(_unrolled) == {"too_many"}


def test_programs_have_the_limit_of_the_operation():
    from tf_fuse.fuse_update.encode import elementwise

    text = (tf_fuse_root() / "cc" / "update" / "update_program.cc").read_text()
    assert f"kMostValues = {elementwise._MOST_VALUES};" in text


def tf_fuse_root():
    from pathlib import Path

    return Path(__file__).resolve().parents[4]


def test_broadcasts_are_left_alone():
    def body(job, g):
        job.w.assign_sub(0.5 * (g * tf.reduce_sum(g, axis=0)))

    outlines = compared(body)
    assert (clusters(outlines), reasons(outlines)) == (0, {"optimizer"})


def test_what_a_program_may_have():
    rules = ElementwiseEncoder(bytes).rules
    assert rules.is_flat and rules.needs_value
    assert rules.has("Mul", 1, 1) and rules.has("AddN", 1, 1) and rules.has("Reshape", 1, 1)
    assert not rules.has("MatMul", 1, 1) and not rules.has("Cast", 1, 14)
