# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Receives that are fused dynamically: each stays an operation of its own.

A worker that sees no other partition than its own, as a worker of a session does, is played by
rewriting each partition by itself.
"""

import re

import tensorflow as tf

from tests.unit.passes.fuse_recv import executor_model
from tests.unit.passes.fuse_recv.test_pipeline_random_loops import _compare, _kept, _random_loops
from tests.unit.passes.graph_interpreters import DEAD, evaluate, stuck
from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    const,
    groups,
    node,
    nodes_of,
    pair,
    partitions,
    recv,
    send,
    skips,
    structure,
)
from tests.unit.passes.random_graphs import random_choices, random_conditionals, random_exchange
from tf_fuse.explain import rewrite


def _chain():
    """Of the three that PS0 sends, the last depends on the first two."""
    return partitions(
        const("a", PS0),
        const("b", PS0),
        *pair("a", "a", PS0, W0),
        *pair("b", "b", PS0, W0),
        node("up", "AddN", ["recv_a", "recv_b"], W0, T=tf.float32, N=2),
        *pair("up", "up", W0, PS0),
        node("c", "Identity", ["recv_up"], PS0, T=tf.float32),
        *pair("c", "c", PS0, W0),
        node("end", "AddN", ["recv_c", "recv_a"], W0, T=tf.float32, N=2),
    )


def _alone(graphs):
    """Each partition rewritten by a process that sees no other."""
    reports, after = [], {}
    for device, graph in graphs.items():
        result = rewrite({device: graph})
        reports.append(result.report)
        after |= result.after
    return reports, after


def test_each_is_an_operation_of_its_own_whatever_its_depth():
    result = rewrite(_chain(), splitting="dynamic")
    assert structure(result.after[W0]) == [
        "end = AddN(tf_fuse/ps_0_to_worker_0/dynamic/recv_c, "
        "tf_fuse/ps_0_to_worker_0/dynamic/recv_a)",
        "send_up = _Send(up)",
        "tf_fuse/ps_0_to_worker_0/dynamic/recv_a = _FuseRecv()",
        "tf_fuse/ps_0_to_worker_0/dynamic/recv_b = _FuseRecv()",
        "tf_fuse/ps_0_to_worker_0/dynamic/recv_c = _FuseRecv()",
        "up = AddN(tf_fuse/ps_0_to_worker_0/dynamic/recv_a, "
        "tf_fuse/ps_0_to_worker_0/dynamic/recv_b)",
    ]
    for fused in nodes_of(result.after[W0], "_FuseRecv"):
        assert fused.attr["dynamic"].b
        assert len(fused.attr["tensor_names"].list.s) == 1
        assert fused.attr["num_alive"].i == 0
    (group,) = result.report.groups
    assert (group.dynamic, group.depth, group.frame) == (True, 0, "")
    assert group.node == "tf_fuse/ps_0_to_worker_0/dynamic"
    assert [slot.sender_node for slot in group.slots] == ["a", "b", "c"]
    # The only one to the server shares no request.
    assert skips(result) == {"alone": ["up"]}
    assert structure(result.after[PS0]) == structure(result.before[PS0])


def test_static_groups_are_what_they_were():
    result = rewrite(_chain())
    assert groups(result) == [["a", "b"]]
    assert not result.report.groups[0].dynamic
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert not fused.attr["dynamic"].b


def test_what_is_not_visible_is_fused_dynamically_and_may_be_dead():
    (report,), after = _alone({W0: _chain()[W0]})
    (group,) = report.groups
    assert group.dynamic
    assert [(slot.tensor_name, slot.may_be_dead) for slot in group.slots] == [
        ("a", True),
        ("b", True),
        ("c", True),
    ]
    name = "tf_fuse/ps_0_to_worker_0/dynamic/recv_"
    assert structure(after[W0]) == [
        f"end = AddN({name}c/alive_0:1, {name}a/alive_0:1)",
        "send_up = _Send(up)",
        *(
            line
            for x in "abc"
            for line in (
                f"{name}{x} = _FuseRecv()",
                f"{name}{x}/alive_0 = Switch({name}{x}, {name}{x}:1)",
            )
        ),
        f"up = AddN({name}a/alive_0:1, {name}b/alive_0:1)",
    ]


def test_one_that_is_alone_shares_no_request():
    (report,), after = _alone({PS0: _chain()[PS0]})
    assert [(s.reason, s.slot.tensor_name) for s in report.skips] == [("sender_not_visible", "up")]
    assert structure(after[PS0]) == structure(_chain()[PS0])


def test_known_depths_are_grouped_beside_unknown_ones():
    nodes = _chain()
    del nodes[PS0]
    nodes |= partitions(*(n for x in "xy" for n in (const(x, PS1), send(x, x, PS1, W0))))
    nodes[W0].node.extend(recv(x, PS1, W0) for x in "xy")
    report = rewrite(nodes).report
    assert [(g.dynamic, [s.tensor_name for s in g.slots]) for g in report.groups] == [
        (False, ["x", "y"]),
        (True, ["a", "b", "c"]),
    ]


def test_what_hangs_on_an_unknown_one_is_unknown_too():
    nodes = [
        *pair("x", "x", PS0, W0),
        *pair("y", "y", PS0, W0),
        node("up", "AddN", ["recv_x", "recv_y"], W0, T=tf.float32, N=2),
        node("up2", "Identity", ["recv_x"], W0, T=tf.float32),
        *pair("up", "up", W0, PS1),
        *pair("up2", "up2", W0, PS1),
    ]
    seen = partitions(const("x", PS0), const("y", PS0), *nodes)
    del seen[PS0]
    report = rewrite(seen).report
    assert [(g.dynamic, [s.tensor_name for s in g.slots]) for g in report.groups] == [
        (True, ["x", "y"]),
        (True, ["up", "up2"]),
    ]
    assert all(slot.may_be_dead for group in report.groups for slot in group.slots)


def test_a_control_input_that_may_be_dead_keeps_a_receive_single():
    nodes = _chain()[W0]
    # A _Recv runs when what it waits for is dead; what recv_a brings may be.
    nodes.node.extend(
        [
            node("a_or_dead", "Identity", ["recv_a"], W0, T=tf.float32),
            recv("d", PS0, W0, control=("a_or_dead",)),
        ]
    )
    (report,), after = _alone({W0: nodes})
    assert [(s.reason, s.slot.tensor_name) for s in report.skips] == [("may_be_dead", "d")]
    assert [n.name for n in nodes_of(after[W0], "_Recv")] == ["recv_d"]


def test_fed_values_and_accelerators_are_left_alone_with_their_reasons():
    gpu = W0.replace("CPU", "GPU")
    nodes = partitions(
        *(recv(f"fed{i}", PS0, W0, client_terminated=True) for i in range(2)),
        *(recv(f"gpu{i}", PS0, gpu) for i in range(2)),
    )
    report = rewrite(nodes, splitting="dynamic").report
    assert not report.groups
    assert sorted((s.reason, s.slot.tensor_name) for s in report.skips) == [
        ("client_terminated", "fed0"),
        ("client_terminated", "fed1"),
        ("not_cpu", "gpu0"),
        ("not_cpu", "gpu1"),
    ]


def test_a_task_without_the_plugin_cannot_run_it():
    task = "/job:worker/replica:0/task:0"
    result = rewrite(_chain(), splitting="dynamic", plain_tasks=[task])
    assert skips(result) == {"alone": ["up"], "peer_without_plugin": ["a", "b", "c"]}


def _recv_name(name):
    """The name of the _Recv that a node stands for, or its own."""
    name = name.removeprefix("^").removesuffix("/alive_0")
    return re.sub(r"^tf_fuse/\w+/dynamic(_\d+)?/", "", name)


def _control_inputs(graphs, *ops):
    return {
        _recv_name(n.name): sorted(_recv_name(i) for i in n.input if i.startswith("^"))
        for graph in graphs.values()
        for op in ops
        for n in nodes_of(graph, op)
    }


def test_in_a_loop_each_is_started_by_what_started_it():
    graph, _ = _random_loops(3)
    result = rewrite(graph, splitting="dynamic")
    assert sum(len(group.slots) for group in result.report.groups if group.frame) > 10
    before = _control_inputs(result.before, "_Recv", "_HostRecv")
    after = _control_inputs(result.after, "_FuseRecv")
    assert after == {name: before[name] for name in after}


def test_random_loops_run_as_stock_s():
    fused = 0
    for seed in range(20):
        result, _ = _compare(*_random_loops(seed), seed, splitting="dynamic")
        assert set(skips(result)) <= {"alone"}, f"seed {seed}"
        assert all(group.dynamic for group in result.report.groups)
        fused += sum(len(group.slots) for group in result.report.groups if group.frame)
    assert fused > 100


def test_loops_run_as_stock_s_when_each_task_sees_its_own_part_only():
    fused = dead = 0
    for seed in range(30):
        graph, sources = _random_loops(seed)
        graphs = rewrite(graph).before
        reports, after = _alone(graphs)
        stock = executor_model.run(graphs, sources, seed)
        rewritten = executor_model.run(after, sources, seed + 1)
        assert (rewritten.stuck, rewritten.left) == (set(), set()), f"seed {seed}"
        slots = [s for report in reports for group in report.groups for s in group.slots]
        replaced = {slot.recv_node for slot in slots}
        assert _kept(stock.values, replaced) == _kept(rewritten.values, replaced), f"seed {seed}"
        fused += len(slots)
        dead += sum(
            value == [executor_model.DEAD]
            for (name, *_), value in stock.values.items()
            if name in replaced
        )
    assert min(fused, dead) > 100, "the graphs are too dull to find anything"


def test_conditionals_are_dead_and_live_where_stock_is_when_each_task_sees_its_own_part_only():
    fused = dead = 0
    for seed in range(60):
        graphs = rewrite(random_conditionals(seed)).before
        reports, after = _alone(graphs)
        slots = [s for report in reports for group in report.groups for s in group.slots]
        for choice in random_choices():
            stock, rewritten = evaluate(graphs, choice), evaluate(after, choice)
            kept = stock.keys() - {slot.recv_node for slot in slots}
            assert {k: stock[k] for k in kept} == {k: rewritten[k] for k in kept}, (seed, choice)
            dead += sum(stock[slot.recv_node] is DEAD for slot in slots)
        fused += len(slots)
    assert min(fused, dead) > 100, "the graphs are too dull to find anything"


def test_no_order_of_receives_deadlocks():
    for seed in range(40):
        result = rewrite(random_exchange(seed), splitting="dynamic")
        assert set(skips(result)) <= {"alone"}, f"seed {seed}"
        assert stuck(result.after) == set(), f"seed {seed}"
