# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Messages: their bounds, the strategies that they rule out, and training steps on two axes."""

from __future__ import annotations

import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.unit.layout.optimize.problems import problem
from tests.unit.layout.optimize.search_checks import GRAPHS, SEEDS
from tests.unit.layout.planning.planned_models import variable
from tf_fuse.layout import Link, Mesh, function_problem
from tf_fuse.layout.optimize.methods import integer_program, messages, neighbourhoods
from tf_fuse.layout.optimize.methods.core_problem import core_of, searched
from tf_fuse.layout.optimize.methods.elimination import Store
from tf_fuse.layout.optimize.round_problem import tables_of

GRID = Mesh((2, 2), ("x", "y"))


@given(seed=SEEDS, graph=st.sampled_from(GRAPHS), infinite=st.sampled_from([0.0, 0.2]))
@settings(max_examples=120, deadline=None)
def test_bounds_and_what_is_ruled_out(seed, graph, infinite):
    """No choice is below the bound, and every cheaper one has strategies that are kept."""
    tables = tables_of(problem(seed, graph, infinite=infinite))
    _, known = neighbourhoods.relaxed(tables, 1)
    best = exhaustive_search.best(tables)
    assume(best is not None and tables.cost_of(known) < 1 << 61)
    found = messages.Messages(tables, known)
    found.run(lambda: True)
    assert found.choice == known
    found.run(lambda: False)
    assert found.bound <= best[0] <= found.cost <= tables.cost_of(known)
    assert found.cost == tables.cost_of(found.choice)
    keep = found.keep(found.gap)
    assert all(s in keep[node] for node, s in enumerate(found.choice))
    assert exhaustive_search.best(tables.restricted(keep))[0] == best[0]
    # A smaller slack loses only what costs more than the bound and the slack.
    slack = found.gap // 2
    near = exhaustive_search.best(tables.restricted(found.keep(slack)))
    assert min(near[0] if near else found.cost, found.bound + slack) <= best[0]


@given(seed=SEEDS, entries=st.sampled_from([6, 1 << 20]))
@settings(max_examples=80, deadline=None)
def test_a_core_has_the_choices_and_bounds_of_the_whole(seed, entries):
    tables = tables_of(problem(seed, "general", infinite=0.1))
    best = exhaustive_search.best(tables)
    core = core_of(tables, entries, Store())
    assume(core.is_possible)
    found = searched(core, entries, Store(), lambda: False)
    if best is None:
        assert found.choice is None
        return
    assert found.bound <= best[0]
    assert found.choice is None or tables.cost_of(found.choice) >= best[0]
    if found.choice is not None and entries > 6:
        assert found.bound == best[0] == tables.cost_of(found.choice)


def blocks(layers: int):
    """A training step of equal blocks with attention; each axis can split several dimensions."""
    shapes = {"q": (16, 2, 8), "k": (16, 2, 8), "o": (2, 8, 16), "up": (16, 32), "down": (32, 16)}
    weights = [
        {name: variable(f"{name}{i}", *shape) for name, shape in shapes.items()}
        for i in range(layers)
    ]
    flat = [one for layer in weights for one in layer.values()]

    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                q, k = (tf.einsum("bsd,dhk->bhsk", y, w[one]) for one in "qk")
                scores = tf.nn.softmax(tf.einsum("bhsk,bhtk->bhst", q, k))
                y += tf.einsum("bhsk,hkd->bsd", tf.einsum("bhst,bhtk->bhsk", scores, k), w["o"])
                y += tf.matmul(tf.nn.relu(tf.matmul(y, w["up"])), w["down"])
            loss = tf.reduce_sum(tf.square(y))
        for one, gradient in zip(flat, tape.gradient(loss, flat), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    return step, [tf.TensorSpec([4, 8, 16])]


def test_training_steps_on_two_axes_have_the_best_plan(monkeypatch):
    """Near the bound so few strategies are left that eliminations prove it, of many layers alike.

    No integer program is solved, and layers mostly reuse what earlier ones computed.
    """
    monkeypatch.setattr(integer_program, "solve", None)
    links = dict.fromkeys(GRID.axes, Link(1e-8, 1e-10))
    step, args = blocks(4)
    found = function_problem(step, GRID, args, links=links).search().plan
    assert (found.method, found.gap_seconds) == ("messages", 0.0)
    assert found.computed < 300 < found.reused
