# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variables, slots, tables and pieces of a session's graph are placed on servers."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


import pytest
import tensorflow as tf

import tf_fuse.parameter_server as parameter_server
from tests.unit.parameter_server.placed_graphs import placed_graph, sizes
from tf_fuse.parameter_server import Costs, PsStrategy

# --- Sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", [True, False])
def test_a_graph_is_placed_by_bytes_and_not_in_turn(resource):
    def build():
        for number in range(4):
            tf.compat.v1.get_variable(f"kernel{number}", [100, 100], use_resource=resource)
            tf.compat.v1.get_variable(f"bias{number}", [100], use_resource=resource)

    stock, _ = placed_graph(None, build)
    assert {d for n, d in stock.items() if "kernel" in n} == {"/job:ps/task:0"}
    ours, _ = placed_graph(PsStrategy(2), build)
    for kind in ("kernel", "bias"):
        devices = sorted(d for n, d in ours.items() if kind in n)
        assert devices == ["/job:ps/task:0"] * 2 + ["/job:ps/task:1"] * 2


def test_a_planned_graph_does_not_depend_on_order():
    plan = parameter_server.plan(sizes(), servers=2)
    placed = [placed_graph(PsStrategy(2, plan=plan), sizes(order=order))[0] for order in (1, -1)]
    assert placed[0] == placed[1]
    assert placed[0]["s1000/v"] != placed[0]["s999/v"]
    assert placed[0]["s10/v"] != placed[0]["s9/v"]


def test_slots_of_a_graph_are_beside_their_variables():
    def build():
        x = tf.compat.v1.get_variable("x", [10])
        y = tf.compat.v1.get_variable("y", [10])
        tf.compat.v1.train.AdamOptimizer().minimize(tf.reduce_sum(x * y))

    plan = parameter_server.plan(build, servers=2)
    slots = {p.variable.name: p.variable.slots for p in plan.places}
    assert slots["x"] == slots["y"] == 2
    variables, _ = placed_graph(PsStrategy(2, plan=plan), build)
    assert variables["x"] != variables["y"]
    for name in ("x", "y"):
        assert variables[f"{name}/Adam"] == variables[f"{name}/Adam_1"] == variables[name]


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("is_synchronous", [True, False])
@pytest.mark.parametrize("is_planned", [True, False])
def test_slots_of_a_graph_are_counted_where_they_are(resource, is_synchronous, is_planned):
    v1 = tf.compat.v1

    def build():
        x = v1.get_variable("x", [100], use_resource=resource)
        y = v1.get_variable("y", [90], use_resource=resource)
        optimizer = v1.train.AdamOptimizer()
        if is_synchronous:
            optimizer = v1.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=2)
        step = v1.train.get_or_create_global_step()
        optimizer.minimize(tf.reduce_sum(x) + tf.reduce_sum(y), global_step=step)

    strategy = PsStrategy(2, plan=parameter_server.plan(build, servers=2) if is_planned else None)
    _, devices = placed_graph(strategy, build)
    report = parameter_server.placement_report(strategy)
    found = {one["variable"]: one for one in report["variables"]}
    sums = {name for name in devices if name.partition("/")[2].startswith("conditional_acc")}
    assert len(sums) == 2 * is_synchronous
    assert found.keys() == {"x", "y", "global_step", *sums}
    for name, one in found.items():
        assert devices[name] == f"/job:ps/task:{one['server']}"
    # Each has two slots of its size; beside the first of both names are the powers of betas.
    assert (found["x"]["slots"], found["y"]["slots"]) == (4, 2)
    assert (found["x"]["kept_bytes"], found["y"]["kept_bytes"]) == (3 * 400 + 2 * 4, 3 * 360)
    assert found["x"]["updated_bytes_per_step"] == 3 * 400
    # What comes later does not meet slots anywhere else.
    assert strategy.placement.loads().counts == [
        sum(v["server"] == s for v in found.values()) for s in (0, 1)
    ]


def test_what_is_beside_a_slot_is_counted_with_the_variable():
    strategy = PsStrategy(2, Costs(slots=1))

    def build():
        x = tf.compat.v1.get_variable("x", [100])
        for name in ("slot", "average"):
            with tf.Graph.colocate_with(x.graph, x):
                x = tf.compat.v1.get_variable(name, [100])

    placed_graph(strategy, build)
    (one,) = parameter_server.placement_report(strategy)["variables"]
    assert (one["variable"], one["slots"], one["kept_bytes"]) == ("x", 2, 1200)
    # One slot was expected.
    assert strategy.placement.loads().loads[one["server"]][0] == 1200


def test_devices_of_a_graph_are_honoured():
    strategy = PsStrategy(2)

    def build():
        for number in range(3):
            with tf.device("/job:ps/task:1"):
                tf.compat.v1.get_variable(f"v{number}", [10])
        with tf.device("/job:worker/task:5"):
            tf.compat.v1.get_variable("local", [10])
        tf.compat.v1.get_variable("free", [10])

    variables, _ = placed_graph(strategy, build)
    assert {variables[f"v{number}"] for number in range(3)} == {"/job:ps/task:1"}
    assert variables["local"] == "/job:worker/task:5"
    assert variables["free"] == "/job:ps/task:0"
    report = parameter_server.placement_report(strategy)
    assert [one["why"] for one in report["variables"]] == ["explicit"] * 3 + ["online"]

    def wrong():
        with tf.device("/job:ps/task:2"):
            tf.compat.v1.get_variable("w", [10])

    with pytest.raises(ValueError, match="'w' is to be on task 2 of the parameter servers, but"):
        placed_graph(PsStrategy(2), wrong)


def test_tables_of_a_graph_are_placed_too():
    strategy = PsStrategy(2)

    def build():
        for _ in range(2):
            tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)

    _, ops = placed_graph(strategy, build)
    assert {d for n, d in ops.items() if n.startswith("MutableHashTable")} >= {
        "/job:ps/task:0",
        "/job:ps/task:1",
    }


def test_pieces_of_a_graphs_variable_are_spread():
    costs = Costs(memory_bytes_per_s=1e12)
    partitioner = parameter_server.CostPartitioner(2, costs, axis=None)

    def build():
        tf.compat.v1.get_variable("ballast", [3000, 1000])
        kernel = tf.compat.v1.get_variable("kernel", [1, 2_000_000], partitioner=partitioner)
        assert [v.shape.as_list() for v in kernel] == [[1, 1_000_000]] * 2

    for plan in (None, parameter_server.plan(build, servers=2)):
        strategy = PsStrategy(2, plan=plan)
        variables, _ = placed_graph(strategy, build)
        assert variables["kernel/part_0"] != variables["kernel/part_1"]
        why = {one["why"] for one in parameter_server.placement_report(strategy)["variables"]}
        assert why == {"online" if plan is None else "planned"}
