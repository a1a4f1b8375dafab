# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans of functions: against all choices, by rules, over meshes, in files and in tables."""

from __future__ import annotations

import io
import itertools

import pytest
import tensorflow as tf
from rich.console import Console

from benchmarks.layout import exhaustive_search
from tests.slow_cases import slow_but
from tests.unit.layout.planning.planned_models import (
    FAST,
    GRID,
    LINE,
    sbp,
    transformer,
    two_layers,
    variable,
    wide_and_deep,
)
from tf_fuse.layout import (
    Hosts,
    LayoutError,
    Link,
    Mesh,
    assumed_rates,
    function_problem,
    plan,
    plan_meshes,
    plan_relayout,
)
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.optimize import Limits, MemoryLimitError
from tf_fuse.layout.optimize.round_problem import tables_of


@pytest.mark.parametrize(
    ("seconds_per_byte", "limit"),
    slow_but(
        itertools.product([0.0, 1e-11, 1e-9, 1e-6], [None, 500, 700]),
        [(0.0, None), (1e-6, None), (1e-11, 500), (0.0, 700), (1e-9, 700)].__contains__,
    ),
)
def test_plans_are_the_best_of_all_choices(seconds_per_byte, limit):
    w = variable("w", 8, 8)

    def f(x):
        w.assign_sub(tf.matmul(x, w))

    problem = function_problem(
        f, LINE, [tf.TensorSpec([8, 8])], links={"x": Link(1e-9, seconds_per_byte)},
        memory_limit_bytes=limit,
    )  # fmt: skip
    tables = tables_of(problem.graph.problem)
    assert exhaustive_search.count(tables) > 1000
    best = exhaustive_search.best(tables)
    if best is None:
        with pytest.raises(MemoryLimitError) as caught:
            problem.search()
        assert caught.value.least_bytes == exhaustive_search.least_memory(tables)
        return
    found = problem.search()
    assert (found.plan.picoseconds, found.plan.optimal) == (best[0], True)
    assert (found.seconds, found.memory_bytes) == (best[0] / 1e12, found.plan.memory_bytes)


def test_the_best_plan_is_no_dearer_than_data():
    step, args = wide_and_deep()
    _, block, block_args = transformer()
    for function, specs in ((step, args), (block, block_args)):
        problem = function_problem(function, LINE, specs, links={"x": FAST})
        best, data = problem.search(), problem.search("data")
        assert best.plan.optimal and best.seconds < data.seconds
        assert best.unknown == {}
    # On two axes the block needs an integer program, for which there is no time.
    problem = function_problem(block, Mesh({"x": 2, "y": 2}), block_args)
    data = problem.search("data")
    hurried = problem.search(limits=Limits(time_limit_seconds=1e-9))
    assert hurried.seconds <= data.seconds and not hurried.plan.optimal
    assert hurried.plan.notes[-1] == (
        "the search ended at its time limit of 1e-09 seconds; on another machine it may find "
        "another plan"
    )


def test_rules_give_some_layouts_and_the_rest_follows():
    """Mesh-TensorFlow's example: the batch over rows, the hidden layer over columns."""
    forward, step, args = two_layers(batch=96, hidden=64)
    dimensions = {"x": ["batch", None], "w": [None, "hidden"], "v": ["hidden", None]}
    rules = "batch:rows;hidden:cols"
    for function, specs in ((forward, args[:1]), (step, args)):
        found = plan(
            function, GRID, specs, mode="propagate", rules=rules, dimensions=dimensions,
            rates=Rates(GRID, dict.fromkeys(GRID.axes, Link(1e-9, 1e-7)), 1e-12),
        )  # fmt: skip
        assert sbp(found.variables) == {"w": "B S(1)", "v": "B S(0)"}
        assert sbp(found.inputs)["x"] == "S(0) B"
        strategies = found.plan.strategies
        assert strategies["MatMul"] == "split m, split n"
        assert strategies["Relu"] == "split d0, split d1"
        assert strategies["MatMul_1"] == "split m, split k"


def test_what_is_written_is_kept_in_the_variables_layout():
    """With a slow link to split it, the variable stays whole, and the update is in slices."""
    w = variable("w", 8, 8)

    def f(x):
        w.assign_add(x)

    problem = function_problem(f, LINE, [tf.TensorSpec([8, 8])])
    problem.search()
    (edge,) = [one for one in problem.graph.problem.edges if one.tensor.endswith("kept")]
    assert str(edge) == "AssignAddVariableOp -> w (w by AssignAddVariableOp kept)"
    update, kept = (
        problem.graph.strategies[problem.graph.problem.indices[one]]
        for one in (edge.source, edge.target)
    )
    link = dict(assumed_rates(LINE).links)
    for row, one in zip(edge.seconds, update, strict=True):
        for seconds, other in zip(row, kept, strict=True):
            made, there = one.outputs[0], other.outputs[0]
            assert seconds == (0 if made == there else plan_relayout(made, there, 4, link).seconds)
    constraints = {"w": "replicate", "AssignAddVariableOp": "split d0"}
    found = problem.search("propagate", constraints=constraints)
    assert sbp(found.variables) == {"w": "B"}
    assert found.plan.relayout_seconds == pytest.approx(edge.seconds[1, 0], abs=1e-12)


def test_saved_constrained_and_read(tmp_path):
    _, step, args = two_layers()
    problem = function_problem(step, LINE, args, links={"x": FAST})
    found = problem.search()
    found.save(tmp_path / "plan")
    again = function_problem(step, LINE, args, links={"x": FAST})
    read = again.load(tmp_path / "plan")
    assert (read.layouts, read.seconds, str(read)) == (found.layouts, found.seconds, str(found))
    assert read.plan.optimal
    constrained = again.search("propagate", constraints=found.plan.strategies)
    assert constrained.plan.choice == found.plan.choice
    other = function_problem(step, Mesh({"x": 4}), args)
    with pytest.raises(LayoutError, match="the plan is for mesh 'x:2', and the model is laid over"):
        other.load(tmp_path / "plan")


def test_plans_are_always_the_same(tmp_path):
    contents = []
    for i in range(2):
        _, step, args = two_layers()
        plan(step, LINE, args, links={"x": FAST}).save(tmp_path / str(i))
        contents.append((tmp_path / str(i)).read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "axes", [("x", "y"), pytest.param(("x", "y", "z"), marks=pytest.mark.slow)], ids="".join
)
def test_plans_over_meshes(axes):
    """Each mesh has the plan that it has alone, and the cheapest one is the best."""
    _, step, args = two_layers()
    # Along the first axis messages are dear, so that 2 x 4 and 4 x 2 differ.
    links = {"x": Link(1e-7, 1e-10), "y": FAST, "z": FAST}

    def rates_on(mesh):
        return assumed_rates(mesh, {axis: links[axis] for axis in mesh.axes})

    found = plan_meshes(step, 8, args, axes=axes, rates_on=rates_on)
    meshes = [one.mesh for one in found.search.tried]
    shapes = [(8,), (2, 4), (4, 2), (2, 2, 2)]
    assert [one.shape for one in meshes] == [one for one in shapes if len(one) <= len(axes)]
    alone = [plan(step, one, args, rates=rates_on(one)) for one in meshes]
    assert [one.plan.picoseconds for one in found.search.tried] == [
        one.plan.picoseconds for one in alone
    ]
    least = min(alone, key=lambda one: one.seconds)
    # (Its layouts may be others that cost the same.)
    assert found.best.seconds == least.seconds
    assert found.best.graph.problem.mesh == least.graph.problem.mesh
    fewer = plan_meshes(step, 8, args, axes=axes[:-1], rates_on=rates_on)
    assert [one.mesh for one in fewer.search.tried] == [
        one for one in meshes if len(one.axes) < len(axes)
    ]
    data = plan_meshes(step, 8, args, axes=axes, mode="data")
    assert data.best.seconds > found.best.seconds
    with pytest.raises(LayoutError) as caught:
        plan_meshes(step, 8, args, axes=axes, memory_limit_bytes=10)
    assert [one.partition(":")[0] for one in caught.value.problems] == ["mesh x"] * len(meshes)
    assert "mesh x:8: no plan fits into memory_limit_bytes=10" in str(caught.value)


@pytest.mark.parametrize("devices_per_host", [1, 2, 4])
def test_plans_on_hosts_are_the_best_of_all_choices(devices_per_host):
    w = variable("w", 8, 8)

    def f(x):
        w.assign_sub(tf.matmul(x, w))

    hosts = Hosts(devices_per_host, Link(1e-9, 1e-11), Link(1e-8, 1e-9))
    problem = function_problem(f, Mesh({"x": 2, "y": 2}), [tf.TensorSpec([8, 8])], links=hosts)
    found = problem.search().plan
    assert found.optimal
    tables = tables_of(problem.graph.problem)
    assert exhaustive_search.cheapest(tables, found.picoseconds) == found.picoseconds


def test_plans_over_meshes_know_the_hosts():
    """On 2 x 4 and 4 x 2 the axis that communicates more lies inside the hosts."""
    _, step, args = two_layers()
    hosts = Hosts(4, Link(1e-9, 1e-11), Link(1e-9, 1e-9))
    found = plan_meshes(step, 8, args, axes=("x", "y"), links=hosts)
    alone = {one.mesh: plan(step, one.mesh, args, links=hosts) for one in found.search.tried}
    assert [one.plan.picoseconds for one in found.search.tried] == [
        one.plan.picoseconds for one in alone.values()
    ]
    seconds = {mesh.shape: one.seconds for mesh, one in alone.items()}
    assert seconds[2, 4] < min(seconds[8,], seconds[4, 2])
    assert found.best.graph.problem.mesh.shape == (2, 4)
    with pytest.raises(LayoutError, match="give rates or links, not both"):
        plan_meshes(step, 8, args, axes="x", links=hosts, rates_on=assumed_rates)


def test_sparse_updates_of_an_embedding():
    """Its rows stay where they are, in the forward pass and in the update, which is a scatter."""
    layer = tf.keras.layers.Embedding(64, 8, name="rows")
    layer.build((None,))
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(layer.trainable_variables)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids)))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply(gradients, layer.trainable_variables)
        return loss

    found = plan(
        step, LINE, [tf.TensorSpec([16], tf.int32)], mode="propagate", rules="vocabulary:x",
        dimensions={layer: {"embeddings": ["vocabulary", "width"]}},
    )  # fmt: skip
    (update,) = [one for one in found.plan.strategies if "ResourceScatterSub" in one]
    (gather,) = [one for one in found.plan.strategies if one.endswith("GatherV2")]
    assert found.plan.strategies[update] == "split vocabulary"
    assert found.plan.strategies[gather] == "split vocabulary"
    assert sbp(found.variables)[layer.embeddings.path] == "S(0)" and found.unknown == {}


def test_tables():
    w = variable("w", 8, 8)

    def f(x):
        tf.print(x)
        return tf.linalg.inv(tf.matmul(x, w))

    found = plan(f, LINE, [tf.TensorSpec([8, 8])], memory_limit_bytes=4096)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(found.table(), found.why(["MatMul"]))
    text = console.export_text()
    for words in (
        "compute ms", "relayout ms", "bytes per device of 4,096; no plan is cheaper",
        "layout on x:2", "note: MatrixInverse has no rule, so all devices do the same: MatrixInver",
        "note: run once in each process: PrintV2 'PrintV2'", "second best",
        "data parallel", "other MatMul",
    ):  # fmt: skip
        assert words in text, words
    row = next(line for line in text.splitlines() if "│ w " in line and "[8, 8]" in line)
    assert [one.strip() for one in row.split("│")[1:-1]] == ["w", "[8, 8]", "B", "256"]
    assert str(found) == f"f: {found.plan}"


def test_assumed_rates():
    rates = assumed_rates(GRID, {"rows": FAST})
    assert dict(rates.links) == {"rows": FAST, "cols": Link(1e-5, 1e-10)}
    assert (rates.seconds_per_flop, rates.seconds_per_byte) == (1e-12, 1e-11)
    assert rates.seconds_per_operation == 1e-6
