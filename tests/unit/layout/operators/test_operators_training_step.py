# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A whole step on simulated devices: any strategies, with the relayouts that edges name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layout import simulation
from tests.unit.layout.edge_costs import resharding_cost
from tests.unit.layout.operators import cases
from tests.unit.layout.operators import numpy_execution as execution
from tf_fuse.layout import Mesh
from tf_fuse.layout.strategies.insert_forks import with_forks
from tf_fuse.layout.strategies.strategy import strategies
from tf_fuse.layout.types.operation import Operation, Tensor, check_graph

X, W, V = ((4, 6), (6, 8), (8, 6))


def tensor(name, shape, parameter=False) -> Tensor:
    return Tensor(name, shape, "float64", parameter)


def two_layers() -> list[Operation]:
    """Two products with a Relu between, beside what they began with; the sum of its squares.

    x is read by two, y twice by one.
    """
    x, w, v = tensor("x", X), tensor("w", W, True), tensor("v", V, True)
    h, r, z, y = tensor("h", (4, 8)), tensor("r", (4, 8)), tensor("z", (4, 6)), tensor("y", (4, 6))
    squares, loss = tensor("q", (4, 6)), tensor("l", ())
    return [
        Operation("x", "Placeholder", [], [x]),
        Operation("w", "Variable", [], [w]),
        Operation("v", "Variable", [], [v]),
        Operation("h", "MatMul", [x, w], [h]),
        Operation("r", "Relu", [h], [r]),
        Operation("z", "MatMul", [r, v], [z]),
        Operation("y", "Add", [x, z], [y]),
        Operation("q", "Mul", [y, y], [squares]),
        Operation("l", "Sum", [squares], [loss]),
    ]


def relu_gradient(device, x, dy):
    return [dy * (x > 0)]


class Step:
    """Runs the graph forward and backward, with a strategy for each operation."""

    def __init__(self, operations, chosen, mesh, values):
        self.operations = operations
        self.chosen = dict(zip([one.name for one in operations], chosen, strict=True))
        self.mesh = mesh
        # What each device holds of each tensor, as its maker left it.
        self.held = {
            name: simulation.scatter(value, self.chosen[name].outputs[0])
            for name, value in values.items()
        }
        self.read: dict = {}
        # The same of gradients, as the maker needs them.
        self.gradients: dict = {}

    def edge(self, operation, i):
        """A tensor's name is that of its maker."""
        one = operation.inputs[i]
        ends = (self.chosen[one.name], 0), (self.chosen[operation.name], i)
        return resharding_cost(one, *ends)

    def forward(self) -> None:
        for one in self.operations:
            if not one.inputs:
                continue
            self.read[one.name] = [
                simulation.run(self.edge(one, i).forward, self.held[source.name])
                for i, source in enumerate(one.inputs)
            ]
            mine = [[held[d] for held in self.read[one.name]] for d in range(self.mesh.size)]
            strategy = self.chosen[one.name]
            made = execution.in_step(one, strategy, self.mesh, cases.KERNELS[one.kind], mine)
            self.held[one.name] = [pieces[0] for pieces in made]

    def backward(self) -> None:
        last = self.operations[-1].name
        layout = self.chosen[last].output_gradients[0]
        self.gradients[last] = simulation.scatter(np.ones((), int), layout)
        for one in reversed(self.operations):
            if not one.inputs:
                continue
            kernel = (
                relu_gradient
                if one.kind == "Relu"
                else execution.linear_gradient(cases.KERNELS[one.kind])
            )
            mine = [
                [*(held[d] for held in self.read[one.name]), self.gradients[one.name][d]]
                for d in range(self.mesh.size)
            ]
            strategy = self.chosen[one.name]
            made = execution.in_step(one, strategy, self.mesh, kernel, mine, strategy.backward)
            for i, source in enumerate(one.inputs):
                arrived = simulation.run(self.edge(one, i).backward, [each[i] for each in made])
                known = self.gradients.setdefault(source.name, [0] * self.mesh.size)
                self.gradients[source.name] = [a + b for a, b in zip(known, arrived, strict=True)]

    def result(self, name) -> np.ndarray:
        return simulation.assemble(self.held[name], self.chosen[name].outputs[0])

    def gradient(self, name) -> np.ndarray:
        return simulation.assemble(self.gradients[name], self.chosen[name].output_gradients[0])


def whole(values):
    """The loss and the gradients, by NumPy."""
    x, w, v = values["x"], values["w"], values["v"]
    h = x @ w
    r = np.maximum(h, 0)
    y = x + r @ v
    dy = 2 * y
    dh = dy @ v.T * (h > 0)
    return (y * y).sum(), {"x": dy + dh @ w.T, "w": x.T @ dh, "v": r.T @ dy}


@pytest.mark.parametrize("mesh", [Mesh({"x": 2}), Mesh({"x": 2, "y": 2})], ids=str)
@settings(deadline=None, max_examples=60)
@given(data=st.data(), forked=st.booleans())
def test_a_step_has_the_same_loss_and_gradients_in_any_strategies(mesh, data, forked):
    operations = with_forks(two_layers()) if forked else two_layers()
    assert [one.name for one in operations if one.kind == "Identity"] == (
        ["x/fork", "y/fork"] if forked else []
    )
    check_graph(operations)
    chosen = [data.draw(st.sampled_from(strategies(one, mesh))) for one in operations]
    shapes = {"x": X, "w": W, "v": V}
    values = {
        name: cases.whole_numbers(shape, i, -4, 5) for i, (name, shape) in enumerate(shapes.items())
    }
    step = Step(operations, chosen, mesh, values)
    step.forward()
    step.backward()
    loss, gradients = whole(values)
    assert step.result("l") == loss
    for name, expected in gradients.items():
        np.testing.assert_array_equal(step.gradient(name), expected, err_msg=name)
