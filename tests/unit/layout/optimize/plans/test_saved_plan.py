# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans in files: what they hold, which problems they fit, and files that are broken."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.unit.layout.optimize.plan_examples import MS, error, example
from tests.unit.layout.optimize.problems import limited, problem
from tf_fuse.layout import LayoutError, Mesh
from tf_fuse.layout.optimize import Plan, Problem, search
from tf_fuse.layout.optimize.plans import saved_plan
from tf_fuse.layout.optimize.round_problem import tables_of

# Files.


@given(seed=st.integers(0, 10**9), share=st.integers(0, 8))
@settings(max_examples=30, deadline=None)
def test_a_plan_comes_back(tmp_path_factory, seed, share):
    one = problem(seed, "general", points=True, copies=True)
    one = limited(one, (exhaustive_search.least_memory(tables_of(one)) or 0) + share)
    node = one.nodes[0]
    plan = search(one, constraints={node.name: node.names} if seed % 2 else None)
    path = tmp_path_factory.mktemp("plans") / "plan"
    plan.save(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["plan"]
    back = Plan.load(path, one)
    assert (back.choice, back.mode, back.method, back.constrained, back.bound_picoseconds) == (
        plan.choice, plan.mode, plan.method, plan.constrained, plan.bound_picoseconds,
    )  # fmt: skip
    # It can be constrained, and is then all that is left.
    assert search(one, "propagate", back.strategies).choice == plan.choice


def test_what_is_in_a_file():
    plan = search(example(limit=5_000), constraints={"up": "hidden"})
    assert str(saved_plan.to_proto(plan)).splitlines()[:10] == [
        "version: 1",
        "mesh {",
        '  name: "x"',
        "  size: 2",
        "}",
        "operations {",
        '  name: "up"',
        '  signature: "MatMul(64, 32)"',
        '  strategy: "hidden"',
        "  compute_picoseconds: 4000000000",
    ]


def test_a_bound_is_kept_only_for_the_same_numbers():
    message = saved_plan.to_proto(search(example()))
    assert saved_plan.from_proto(message, example(), Plan).optimal
    other = saved_plan.from_proto(message, example(fast=0.5), Plan)
    assert (other.picoseconds, other.bound_picoseconds) == (10**10, 10**10)
    faster = example()
    slow = [
        dataclasses.replace(
            node,
            candidates=tuple(
                dataclasses.replace(one, compute_seconds=1 * MS) for one in node.candidates
            ),
        )
        for node in faster.nodes
    ]
    other = saved_plan.from_proto(message, Problem(slow, faster.edges, None, faster.mesh), Plan)
    assert (other.picoseconds, other.bound_picoseconds) == (4 * 10**9, 0)
    assert saved_plan.from_proto(message, example(limit=8_000), Plan).bound_picoseconds == 0


def test_plans_that_do_not_fit(tmp_path):
    message = saved_plan.to_proto(search(example()))
    load = functools.partial(saved_plan.from_proto, kind=Plan)
    assert error(load, message, example(mesh=Mesh({"x": 2, "y": 4}))) == (
        "the plan is for mesh 'x:2', and the model is laid over 'x:2;y:4'"
    )
    one = example()
    renamed = [one.nodes[0], dataclasses.replace(one.nodes[1], name="out")]
    edge = dataclasses.replace(one.edges[0], target="out")
    assert error(load, message, Problem(renamed, [edge], None, one.mesh)) == (
        "- the model has operations that the plan has not: out\n"
        "- the plan has operations that the model has not: down"
    )
    reshaped = [dataclasses.replace(one.nodes[0], signature="MatMul(64, 48)"), one.nodes[1]]
    assert error(load, message, Problem(reshaped, one.edges, None, one.mesh)) == (
        "operation 'up' is 'MatMul(64, 32)' in the plan, and 'MatMul(64, 48)' in the model"
    )
    assert error(load, message, Problem(one.nodes, (), None, one.mesh)) == (
        "the plan has 1 tensors between operations, and the model has 0; only in the plan: up -> "
        "down; only in the model: none"
    )
    assert error(load, message, example(limit=7_000)) == (
        "the plan needs 8,000 bytes per device, and memory_limit_bytes is 7,000, 1,000 less; raise "
        "the limit, or search again"
    )
    inf = dataclasses.replace(one.edges[0], seconds=np.full((2, 2), np.inf))
    assert error(load, message, Problem(one.nodes, [inf], None, one.mesh)) == (
        "the plan cannot be: there is no relayout of up -> down (h) between 'batch' and 'batch'; "
        "search again"
    )
    message.operations[0].strategy = "rows"
    assert error(load, message, one) == (
        "operation 'up' has strategy 'rows' in the plan, and in the model it has: batch, hidden"
    )
    message.operations[0].strategy = "batch"
    message.mode = "best"
    assert error(load, message, one) == (
        "the plan's mode is 'best', and modes are data, auto, propagate"
    )
    message.version = 2
    assert error(load, message, one) == (
        "the plan has version 2, and this is for version 1; search again"
    )
    path = tmp_path / "plan"
    path.write_bytes(message.SerializeToString())
    assert error(Plan.load, path, one) == (
        f"{path}: the plan has version 2, and this is for version 1; search again"
    )
    path.write_bytes(b"\xff" * 9)
    assert error(Plan.load, path, one).startswith(f"{path} holds no plan: ")
    path.write_bytes(b"")
    assert "has version 0" in error(Plan.load, path, one)


def test_operations_that_are_twice_in_a_file():
    message = saved_plan.to_proto(search(example()))
    message.operations.add().CopyFrom(message.operations[0])
    message.operations[2].strategy = "hidden"
    assert error(saved_plan.from_proto, message, example(), Plan) == (
        "the plan has operation 'up' 2 times, with strategies batch, hidden"
    )


@given(content=st.binary(max_size=80), flips=st.lists(st.integers(0, 10**6), max_size=4))
@settings(max_examples=150, deadline=None)
def test_files_that_are_broken(tmp_path_factory, content, flips):
    """Whatever a file holds, it is a plan that fits or an error of ours."""
    whole = bytearray(saved_plan.to_proto(search(example())).SerializeToString())
    for flip in flips:
        whole[flip % len(whole)] ^= 1 << flip % 8
    path = tmp_path_factory.mktemp("broken") / "plan"
    for data in (content, bytes(whole)):
        path.write_bytes(data)
        try:
            plan = Plan.load(path, example())
        except LayoutError:
            continue
        assert plan.tables.fits(plan.choice)
        assert plan.bound_picoseconds <= plan.picoseconds
