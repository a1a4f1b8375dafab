# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans of variables that are not there yet, and what becomes of them."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import json
import random
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_fuse.parameter_server as parameter_server
from tf_fuse.cli import main
from tf_fuse.parameter_server import Costs, PsStrategy
from tf_fuse.parameter_server.abstract_build import record
from tf_fuse.parameter_server.balance import ServerLoads
from tf_fuse.parameter_server.costs import Load, VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import PartitionDecision
from tf_fuse.parameter_server.placement.placer import Placer
from tf_fuse.parameter_server.placement.planned_places import Expected, make_plan
from tf_fuse.parameter_server.planning import expected_of


def _expected(*shapes):
    return [Expected(VariableSpec(f"v{i}", s, "float32")) for i, s in enumerate(shapes)]


def _plan(expected, servers=2, split=None):
    return make_plan(expected, Costs(), ServerLoads(servers, 3), split)


def _model():
    model = keras.Sequential(
        [
            keras.layers.Embedding(100, 8),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(16),
            keras.layers.Dense(4),
        ]
    )
    model.build((None, 5))
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer


# --- Loads ---------------------------------------------------------------------------------------


def test_what_a_dense_weight_costs():
    costs = Costs(workers=3, slots=2, update_s_per_byte=1e-9, update_s=1e-6)
    assert VariableSpec("kernel", (10, 5), "float32").load(costs) == Load(
        kept=600.0, read=600.0, updated=1800.0, update_s=1800e-9 + 3e-6, sent_back=600.0
    )


def test_of_what_is_gathered_the_rows_count():
    costs = Costs(workers=2, slots=1, rows_per_step={"t": 5}, update_s=0.0)
    load = VariableSpec("t", (100, 4), "float32").load(costs)
    assert (load.kept, load.read, load.updated, load.sent_back) == (3200.0, 160.0, 320.0, 160.0)
    # A tenth of the rows is on this server.
    piece = VariableSpec("t", (10, 4), "float32").load(replace(costs, rows_per_step={"t": 5}), 0.1)
    assert (piece.kept, piece.read) == (320.0, 16.0)


@pytest.mark.parametrize("dtype, trainable", [("int64", True), ("float32", False)])
def test_what_is_not_trained_is_read_only(dtype, trainable):
    variable = VariableSpec("step", (), dtype, trainable)
    size = float(variable.bytes)
    assert variable.load(Costs()) == Load(kept=size, read=size)


def test_slots_that_are_known_count_in_place_of_those_expected():
    weight = VariableSpec("w", (10,), "float32")
    assert weight.load(Costs(slots=2)).kept == 120
    assert replace(weight, slots=0).load(Costs(slots=2)).kept == 40


# --- Plans ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**6)), min_size=1, max_size=30),
    st.integers(1, 4),
    st.randoms(),
)
@settings(deadline=None)
def test_a_plan_does_not_depend_on_order(named, servers, shuffle):
    expected = [Expected(VariableSpec(name, (size,), "float32")) for name, size in named]
    before = _plan(expected, servers).places
    shuffle.shuffle(expected)
    assert _plan(expected, servers).places == before


def test_places_are_taken_by_name_shape_and_type_whatever_the_order():
    expected = _expected(*((size,) for size in (1000, 900, 500, 400, 10, 10)))
    servers = {}
    for order in (expected, expected[::-1]):
        placement = Placer(2, Costs())
        placement.add_plan(_plan(expected))
        placed = [placement.place(one.variable) for one in order]
        assert {one.why for one in placed} == {"planned"}
        servers[order is expected] = {one.variable.name: one.server for one in placed}
    assert servers[True] == servers[False]


def test_names_that_are_there_twice_have_a_place_each():
    plan = _plan([Expected(VariableSpec("v", (8,), "float32"))] * 2)
    placement = Placer(2, Costs())
    placement.add_plan(plan)
    placed = [placement.place(VariableSpec("v", (8,), "float32")) for _ in range(3)]
    assert sorted(one.server for one in placed[:2]) == [0, 1]
    assert [one.why for one in placed] == ["planned", "planned", "online"]


@pytest.mark.parametrize("shape, dtype", [((9,), "float32"), ((8,), "float64")])
def test_another_shape_or_type_is_another_variable(shape, dtype):
    placement = Placer(2, Costs())
    plan = _plan([Expected(VariableSpec("v", (8,), "float32"))])
    placement.add_plan(plan)
    assert placement.place(VariableSpec("v", shape, dtype)).why == "online"
    # The place was kept until the plan ended, so the other variable went elsewhere.
    assert [place.variable.name for place in placement.remove_plan(plan)] == ["v"]
    assert placement.plans() == [{"variables": 1, "not_made": ["v"], "reason": "", "spread": []}]
    assert placement.loads().counts in ([1, 0], [0, 1])


def test_what_is_on_servers_already_is_counted():
    placement = Placer(2, Costs())
    first = placement.place(VariableSpec("old", (1000,), "float32"))
    plan = make_plan(_expected((900,), (80,)), Costs(), placement.loads())
    placement.add_plan(plan)
    assert placement.place(VariableSpec("v0", (900,), "float32")).server == 1 - first.server
    assert placement.place(VariableSpec("v1", (80,), "float32")).server == 1 - first.server


def test_explicit_servers_come_first():
    variable = VariableSpec("v", (8,), "float32")
    placement = Placer(2, Costs())
    assert [placement.place(variable, explicit=1).server for _ in range(3)] == [1, 1, 1]
    assert {one.why for one in placement.placed()} == {"explicit"}
    placement.add_plan(_plan([Expected(variable, server=1), *_expected((8,))]))
    assert placement.place(VariableSpec("v0", (8,), "float32")).server == 0
    assert placement.place(variable, explicit=1).why == "explicit"
    assert placement.place(variable, explicit=0).server == 0


def test_pieces_of_a_plan_are_on_different_servers():
    def split(variables, servers):
        return {one: PartitionDecision(one, 3 if one.name == "v0" else 1) for one in variables}

    plan = _plan(_expected((100, 2), (10, 2)), servers=3, split=split)
    pieces = [p for p in plan.places if p.variable.name.startswith("v0/")]
    assert [p.variable.name for p in pieces] == ["v0/part_0", "v0/part_1", "v0/part_2"]
    assert [p.variable.shape for p in pieces] == [(34, 2), (33, 2), (33, 2)]
    assert sorted(p.server for p in pieces) == [0, 1, 2]
    assert [p.share for p in pieces] == [0.34, 0.33, 0.33]


def test_slots_are_counted_once():
    placement = Placer(2, Costs(slots=2))
    placed = placement.place(VariableSpec("w", (10,), "float32"))
    placement.made(placed, placed.variable, "id")
    before = placement.loads().loads
    placement.add_slot("id", 40)
    placement.add_slot("id", 40)
    assert placement.loads().loads == before
    placement.add_slot("id", 40)  # more than were expected
    assert placement.loads().loads[placed.server][0] == before[placed.server][0] + 40
    placement.add_slot("other", 40)
    ((_, load),) = placement.measured()
    assert load.kept == 160


def test_a_variable_that_could_not_be_made_is_forgotten():
    placement = Placer(2, Costs())
    placed = placement.place(VariableSpec("w", (10,), "float32"))
    placement.forget(placed)
    assert placement.placed() == [] and placement.loads().counts == [0, 0]


def test_a_size_that_was_not_known_is_corrected():
    placement = Placer(2, Costs())
    placed = placement.place(VariableSpec("w", (), "float32"), is_sized=False)
    assert placed.why == "unsized"
    placement.made(placed, VariableSpec("w", (1000,), "float32"), "id")
    assert placement.place(VariableSpec("u", (10,), "float32")).server == 1 - placed.server


def test_a_plan_for_other_servers_is_an_error():
    with pytest.raises(ValueError, match="is for 3 parameter servers, and there are 2"):
        Placer(2, Costs()).add_plan(_plan(_expected((1,)), servers=3))
    with pytest.raises(ValueError, match="there are 0 parameter servers"):
        parameter_server.plan(lambda: None, servers=0)
    with pytest.raises(ValueError, match="there are 0 parameter servers"):
        Placer(0, Costs())


# --- Models that are built abstractly ------------------------------------------------------------


def test_all_variables_of_a_keras_model_are_recorded_with_their_slots():
    expected = {e.variable.name: e.variable for e in expected_of(record(_model), in_graph=False)}
    weights = {k: v for k, v in expected.items() if v.is_trained}
    assert {(k.rpartition("/")[2], v.shape, v.slots) for k, v in weights.items()} == {
        ("embeddings", (100, 8), 2),
        ("kernel", (8, 16), 2),
        ("bias", (16,), 2),
        ("kernel", (16, 4), 2),
        ("bias", (4,), 2),
    }
    others = {k.rpartition("/")[2]: v.slots for k, v in expected.items() if k not in weights}
    assert others == {"seed_generator_state": 0, "iteration": 0, "learning_rate": 0}


def test_nothing_is_noticed_of_the_first_run():
    names = []

    def build():
        layer = keras.layers.Dense(2)
        layer.build((None, 2))
        names.append((layer.name, random.random(), np.random.random(), layer.kernel.path))
        keras.random.uniform((2,))

    keras.utils.set_random_seed(1)
    record(build)
    build()
    assert names[0] == names[1]
    keras.utils.set_random_seed(1)
    build()
    assert names[1][1:3] == names[2][1:3]


def test_names_are_those_that_the_program_gave():
    def build():
        with tf.name_scope("a"):
            tf.Variable([1.0], name="x")
            with tf.name_scope("b"):
                tf.Variable([1.0], name="x")
        with tf.name_scope("a"), tf.device("/job:ps/task:1"):
            tf.Variable([1.0], name="x")
        tf.Variable([1.0])

    recorded = record(build)
    assert [one.name for one in recorded] == ["a/x", "a/b/x", "a/x", "Variable"]
    assert [one.graph_name for one in recorded] == ["a/x", "a/b/x", "a_1/x", "Variable"]
    assert [one.server for one in recorded] == [None, None, 1, None]
    with tf.name_scope("outer"):
        assert next(one.name for one in record(build)) == "outer/a/x"


def test_values_from_outside_are_of_no_use_and_not_needed():
    tensor, array = tf.ones([3, 2]), np.ones([500, 2], np.float32)
    recorded = record(
        lambda: (tf.Variable(tensor), tf.Variable(array), tf.Variable(lambda: tensor))
    )
    assert [one.shape for one in recorded] == [(3, 2), (500, 2), (3, 2)]


def test_a_model_that_needs_values_is_not_planned(caplog):
    def build():
        return float(tf.Variable(1.0) + 1.0)

    plan = parameter_server.plan(build, servers=2)
    assert plan.places == ()
    assert plan.reason.startswith("the model cannot be built abstractly: ")
    assert plan.reason in caplog.text


def test_an_explicit_server_that_there_is_not():
    def build():
        with tf.device("/job:ps/task:2"):
            tf.Variable(1.0, name="x")

    with pytest.raises(ValueError, match=r"'x' is to be on /job:ps/task:2, but there are 2 param"):
        parameter_server.plan(build, servers=2)


# --- Sessions ------------------------------------------------------------------------------------


def _graph(strategy, build):
    """Devices of the variables of a graph, by name, and of all of its operations."""
    setter = tf.compat.v1.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)
    with tf.Graph().as_default() as graph, tf.compat.v1.device(setter):
        build()
    ops = {op.name: op.device for op in graph.get_operations()}
    kinds = ("VarHandleOp", "VariableV2")
    return {op.name: op.device for op in graph.get_operations() if op.type in kinds}, ops


def _sizes(resource=True, order=1):
    def build():
        for size in (1000, 999, 10, 9)[::order]:
            with tf.compat.v1.variable_scope(f"s{size}"):
                tf.compat.v1.get_variable("v", [size], use_resource=resource)

    return build


@pytest.mark.parametrize("resource", [True, False])
def test_a_graph_is_placed_by_bytes_and_not_in_turn(resource):
    def build():
        for number in range(4):
            tf.compat.v1.get_variable(f"kernel{number}", [100, 100], use_resource=resource)
            tf.compat.v1.get_variable(f"bias{number}", [100], use_resource=resource)

    stock, _ = _graph(None, build)
    assert {d for n, d in stock.items() if "kernel" in n} == {"/job:ps/task:0"}
    ours, _ = _graph(PsStrategy(2), build)
    for kind in ("kernel", "bias"):
        devices = sorted(d for n, d in ours.items() if kind in n)
        assert devices == ["/job:ps/task:0"] * 2 + ["/job:ps/task:1"] * 2


def test_a_planned_graph_does_not_depend_on_order():
    plan = parameter_server.plan(_sizes(), servers=2)
    placed = [_graph(PsStrategy(2, plan=plan), _sizes(order=order))[0] for order in (1, -1)]
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
    variables, _ = _graph(PsStrategy(2, plan=plan), build)
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
    _, devices = _graph(strategy, build)
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

    _graph(strategy, build)
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

    variables, _ = _graph(strategy, build)
    assert {variables[f"v{number}"] for number in range(3)} == {"/job:ps/task:1"}
    assert variables["local"] == "/job:worker/task:5"
    assert variables["free"] == "/job:ps/task:0"
    report = parameter_server.placement_report(strategy)
    assert [one["why"] for one in report["variables"]] == ["explicit"] * 3 + ["online"]

    def wrong():
        with tf.device("/job:ps/task:2"):
            tf.compat.v1.get_variable("w", [10])

    with pytest.raises(ValueError, match="'w' is to be on task 2 of the parameter servers, but"):
        _graph(PsStrategy(2), wrong)


def test_tables_of_a_graph_are_placed_too():
    strategy = PsStrategy(2)

    def build():
        for _ in range(2):
            tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)

    _, ops = _graph(strategy, build)
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
        variables, _ = _graph(strategy, build)
        assert variables["kernel/part_0"] != variables["kernel/part_1"]
        why = {one["why"] for one in parameter_server.placement_report(strategy)["variables"]}
        assert why == {"online" if plan is None else "planned"}


# --- The report ----------------------------------------------------------------------------------


def test_the_report_adds_up(tmp_path, capsys):
    strategy = PsStrategy(2, Costs(slots=0, workers=2))
    _graph(strategy, _sizes())
    report = json.loads(json.dumps(parameter_server.placement_report(strategy)))
    assert [one["kept_bytes"] for one in report["servers"]] == [4036, 4036]
    assert [one["read_bytes_per_step"] for one in report["servers"]] == [8072, 8072]
    assert report["imbalance"]["kept_bytes"] == 1.0
    assert [(v["variable"], v["server"], v["kept_bytes"]) for v in report["variables"]] == [
        ("s1000/v", 0, 4000),
        ("s999/v", 1, 3996),
        ("s10/v", 1, 40),
        ("s9/v", 0, 36),
    ]
    assert report["partitions"] == report["plans"] == []
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Parameter servers" in out and "s1000/v" in out and "4,036" in out
    assert main(["explain", str(path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == report
    path.write_text(json.dumps({**report, "variables": [{}]}))
    assert main(["explain", str(path)]) == 1
    assert "placement_report() of this version" in capsys.readouterr().err


def test_long_names_of_a_report_are_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # as in a file
    name = "sequential/" + "transformer_block_0123456789/" * 3 + "kernel"
    strategy = PsStrategy(2)
    _graph(strategy, lambda: tf.compat.v1.get_variable(name, [10]))
    parameter_server.print_placement_report(strategy)
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("sequential/"))
    column = len(lines[at].split()[0])
    assert name in "".join(line.strip()[:column] for line in lines[at : at + 8])


def test_a_report_of_another_strategy():
    with pytest.raises(TypeError, match="got MirroredStrategy"):
        parameter_server.placement_report(tf.distribute.MirroredStrategy(["CPU:0"]))


def test_without_a_strategy_a_model_is_just_built():
    assert parameter_server.build(lambda: 7) == 7
