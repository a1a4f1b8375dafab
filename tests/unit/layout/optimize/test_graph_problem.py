# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Problems of graphs: what they are made of, and searches of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.layout import exhaustive_search
from tests.unit.layout.edge_costs import resharding_cost
from tf_fuse.layout import LayoutError, Link, Mesh, StepSet
from tf_fuse.layout.cost.model import Rates, operation_cost
from tf_fuse.layout.optimize import Problem, search
from tf_fuse.layout.optimize.graph_problem import problem_of, signature_of
from tf_fuse.layout.optimize.round_problem import tables_of
from tf_fuse.layout.types.operation import Operation, Tensor

MESH = Mesh({"x": 2})
RATES = Rates(MESH, {"x": Link(1e-6, 1e-9)}, 1e-12, 1e-12, 1e-6, overlap=0.5)
X = Tensor("x", (8, 4))
W = Tensor("w", (4, 16), parameter=True)
H = Tensor("h", (8, 16))
R = Tensor("r", (8, 16))
MATMUL = Operation("matmul", "MatMul", [X, W], [H])
RELU = Operation("relu", "Relu", [H], [R])


def test_nodes_and_edges():
    graph = problem_of([MATMUL, RELU], RATES, training=True, slots=2)
    problem = graph.problem
    assert [node.name for node in problem.nodes] == ["x", "w", "matmul", "relu"]
    assert [str(edge) for edge in problem.edges] == [
        "x -> matmul (x)",
        "w -> matmul (w)",
        "matmul -> relu (h)",
    ]
    assert problem.node("matmul").signature == (
        "MatMul(float32[8, 4], float32[4, 16]) -> float32[8, 16]"
    )
    assert problem.mesh == MESH
    for operation, mine, node in zip(
        graph.operations, graph.strategies, problem.nodes, strict=True
    ):
        assert node.names == tuple(map(str, mine))
        for strategy, candidate in zip(mine, node.candidates, strict=True):
            cost = operation_cost(strategy, RATES, training=True)
            assert candidate.seconds == pytest.approx(cost.seconds, abs=1e-15), operation


def test_edges_cost_what_their_relayouts_do():
    graph = problem_of([MATMUL, RELU], RATES, training=True)
    index = graph.problem.indices
    for edge, (tensor, i) in zip(graph.problem.edges, ((X, 0), (W, 1), (H, 0)), strict=True):
        makers, readers = graph.strategies[index[edge.source]], graph.strategies[index[edge.target]]
        wanted = [
            [resharding_cost(tensor, (one, 0), (other, i), RATES).seconds for other in readers]
            for one in makers
        ]
        assert edge.seconds.tolist() == wanted
        assert edge.seconds.max() > 0


def test_memory():
    graph = problem_of([MATMUL, RELU], RATES, training=True, slots=2)
    nodes = {node.name: node for node in graph.problem.nodes}
    held = {
        name: {one.name: (one.memory_bytes, one.transient_bytes) for one in node.candidates}
        for name, node in nodes.items()
    }
    # A parameter, its gradient and two slots; what is fed; and what the gradient of ReLU needs.
    assert held["w"] == {
        "replicate": (4 * 256, 0), "split 0.0": (4 * 128, 0), "split 0.1": (4 * 128, 0),
    }  # fmt: skip
    assert held["x"]["replicate"] == (128, 0)
    assert held["matmul"]["replicate"] == (0, 512)
    assert held["relu"]["replicate"] == (512, 0)
    assert nodes["matmul"].live == (2, 3)
    # The gradient of the matmul needs x and w as it reads them: copies, where they lie otherwise.
    assert [str(one) for one in graph.strategies[1]] == ["replicate", "split 0.0", "split 0.1"]
    read = [one.inputs[1] for one in graph.strategies[2]]
    made = [one.outputs[0] for one in graph.strategies[1]]
    assert graph.problem.edges[1].memory_bytes.tolist() == [
        [0 if one == other else 256 // (1 + any(other.splits)) for other in read] for one in made
    ]
    assert graph.problem.edges[2].memory_bytes is None
    forward = problem_of([MATMUL, RELU], RATES)
    assert forward.problem.node("w").candidates[0].memory_bytes == 256
    assert [edge.memory_bytes for edge in forward.problem.edges] == [None] * 3


def test_search_of_a_graph():
    for training, limit in itertools.product((False, True), (None, 900)):
        graph = problem_of([MATMUL, RELU], RATES, training, limit)
        plan = search(graph.problem)
        best = exhaustive_search.best(tables_of(graph.problem))
        assert best is not None and plan.picoseconds == best[0]
        assert graph.memory(plan).peak_bytes <= plan.memory_bytes
        layouts = graph.layouts(plan)
        assert sorted(layouts) == ["h", "r", "w", "x"]
        assert [str(one) for one in graph.chosen(plan)] == list(plan.strategies.values())


def test_batch_alone():
    mesh = Mesh({"x": 2, "y": 2})
    rates = Rates(mesh, dict.fromkeys("xy", Link(1e-6, 1e-9)), 1e-12)
    loss = Operation(
        "loss", "Mean", [R], [Tensor("loss", ())], {"axes": (0, 1), "keep_dims": False}
    )
    graph = problem_of([MATMUL, RELU, loss], rates, training=True)
    plan = search(graph.problem, "data")
    layouts = graph.layouts(plan)
    assert [layouts[name].splits for name in "xwhr"] == [
        (("x", "y"), ()), ((), ()), (("x", "y"), ()), (("x", "y"), ()),
    ]  # fmt: skip
    assert layouts["loss"].partial == ("x", "y")
    other = problem_of([MATMUL, RELU, loss], rates, training=True, batch={"x": None})
    assert search(other.problem, "data").strategies["relu"] == "replicate, replicate"


def test_relayouts_that_are_not_allowed():
    mesh = Mesh({"x": 2, "y": 2})
    rates = Rates(mesh, dict.fromkeys("xy", Link(1e-6, 1e-9)), 1e-12)
    steps = StepSet(frozenset(), stacked=False, pad=False, strided=False)
    graph = problem_of([RELU], rates, steps=steps)
    names = graph.problem.node("relu").names
    stacked = [name.split(", ")[0] == name.split(", ")[1] != "replicate" for name in names]
    seconds = graph.problem.edges[0].seconds
    assert np.isinf(seconds[0]).tolist() == stacked


def test_results_are_not_partial():
    # What is contracted is large, so that splitting it is cheapest.
    x, w, y = Tensor("x", (4, 512)), Tensor("w", (512, 4), parameter=True), Tensor("y", (4, 4))
    product = Operation("product", "MatMul", [x, w], [y])
    free = problem_of([product], RATES)
    assert free.layouts(search(free.problem))["y"].partial == ("x",)
    graph = problem_of([product], RATES, results=["y"])
    plan = search(graph.problem)
    assert [node.name for node in graph.problem.nodes] == ["x", "w", "product", "result y"]
    assert not any(one.outputs[0].partial for one in graph.strategies[3])
    assert graph.layouts(plan)["result y"].partial == ()
    assert plan.picoseconds == exhaustive_search.best(tables_of(graph.problem))[0]
    assert plan.picoseconds > search(free.problem).picoseconds
    with pytest.raises(LayoutError) as caught:
        problem_of([product], RATES, results=["z"])
    assert str(caught.value) == "results: no operation makes 'z'; there are: y"


def test_sources_have_names_of_their_own():
    clash = Operation("h", "Relu", [H], [R])
    names = [node.name for node in problem_of([clash], RATES).problem.nodes]
    assert names == ["source of h", "h"]


def test_signature_tells_attributes():
    one = Operation("e", "Einsum", [X, W], [H], {"equation": "ab,bc->ac"})
    assert signature_of(one) == (
        "Einsum[equation=ab,bc->ac](float32[8, 4], float32[4, 16]) -> float32[8, 16]"
    )


def test_errors():
    with pytest.raises(LayoutError) as caught:
        problem_of([MATMUL], RATES, batch={"w": 0, "x": 2})
    assert str(caught.value) == (
        "- batch: no tensor 'w' is fed; there are: x\n"
        "- batch: tensor 'x' has 2 dimensions, and 2 is not one of them"
    )
    with pytest.raises(LayoutError, match="sort the operations"):
        problem_of([RELU, MATMUL], RATES)


def test_an_empty_graph():
    graph = problem_of([], RATES)
    assert isinstance(graph.problem, Problem)
    assert search(graph.problem).choice == ()
