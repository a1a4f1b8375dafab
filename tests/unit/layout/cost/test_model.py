# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Seconds of operations and of the edges between them."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.unit.layout.edge_costs import gradient_reductions, resharding_cost
from tf_fuse.layout import Hosts, LayoutError, Link, Mesh
from tf_fuse.layout.cost.model import Rates, operation_cost
from tf_fuse.layout.strategies.strategy import strategies
from tf_fuse.layout.types.operation import Operation, Tensor

LINE = Mesh({"x": 4})
SQUARE = Mesh({"x": 2, "y": 4})
# Powers of two, so that sums are exact.
ALPHA, BETA, FLOP, BYTE, EACH = 2.0**-10, 2.0**-20, 2.0**-30, 2.0**-26, 2.0**-12


def rates(mesh=LINE, overlap=0.0, **links) -> Rates:
    by_axis = dict.fromkeys(mesh.axes, Link(ALPHA, BETA)) | links
    return Rates(mesh, by_axis, FLOP, BYTE, EACH, overlap)


def choose(operation, mesh, *words):
    (found,) = [one for one in strategies(operation, mesh) if str(one) == ", ".join(words)]
    return found


def product(name="y", x="x", w="w", m=64, k=32, n=16) -> Operation:
    inputs = [Tensor(x, (m, k)), Tensor(w, (k, n), parameter=True)]
    return Operation(name, "MatMul", inputs, [Tensor(name, (m, n))])


def test_seconds_of_an_operation():
    cost = operation_cost(choose(product(), LINE, "split m"), rates())
    flops = 2 * 16 * 32 * 16
    inputs, outputs = (16 * 32 + 32 * 16) * 4, 16 * 16 * 4
    assert cost.forward_compute == EACH + flops * FLOP + (inputs + outputs) * BYTE
    assert cost.backward_compute == EACH + 2 * flops * FLOP + (2 * inputs + outputs) * BYTE
    assert cost.forward_communication == cost.backward_communication == cost.received_bytes == 0
    assert cost.seconds == cost.forward_compute + cost.backward_compute
    only = operation_cost(choose(product(), LINE, "split m"), rates(), training=False)
    assert only.seconds == cost.forward_compute


def test_seconds_within_an_operation_are_those_of_the_slowest_link():
    softmax = Operation("p", "Softmax", [Tensor("x", (8, 32))], [Tensor("p", (8, 32))])
    both = choose(softmax, SQUARE, "split d1", "split d1")
    slow = Link(4 * ALPHA, BETA / 2)
    cost = operation_cost(both, rates(SQUARE, x=slow))
    # Of 8 rows 4 bytes each; 8 devices all-reduce 2 * 7 / 8 of that, in 14 messages.
    each = 14 * 4 * ALPHA + 2 * 7 / 8 * 32 * BETA
    assert cost.forward_communication == 2 * each
    assert cost.backward_communication == each
    assert cost.received_bytes == 3 * 2 * 7 * 32
    assert operation_cost(both, rates(SQUARE), training=False).backward_communication == 0


def test_seconds_within_an_operation_are_those_of_the_groups_on_hosts():
    """Groups over y share a card by two, since each host has half of each of two groups."""
    softmax = Operation("p", "Softmax", [Tensor("x", (8, 32))], [Tensor("p", (8, 32))])
    near, card = Link(ALPHA, BETA / 4), Link(4 * ALPHA, BETA)
    for axis, devices_per_host, messages, received, link in (
        ("x", 8, 2, 2 * 1 / 2 * 32, near),
        ("x", 4, 2, 2 * 1 / 2 * 32, Link(4 * ALPHA, 4 * BETA)),
        ("y", 4, 6, 2 * 3 / 4 * 32, near),
        ("y", 2, 6, 2 * 3 / 4 * 32, card),
    ):
        words = [("replicate", "split d1")[axis == one] for one in SQUARE.axes]
        cost = operation_cost(
            choose(softmax, SQUARE, *words),
            Rates(SQUARE, Hosts(devices_per_host, near, card), FLOP),
            training=False,
        )
        each = messages * link.seconds_per_message + received * link.seconds_per_byte
        assert cost.forward_communication == 2 * each


def test_a_source_takes_no_time():
    source = Operation("w", "Variable", [], [Tensor("w", (8, 8), parameter=True)])
    assert operation_cost(strategies(source, LINE)[1], rates()).seconds == 0


def test_reductions_of_parameters_gradients_are_hidden_in_part():
    """An all-reduce of 32 x 16 floats over four devices: 2 * 3 / 4 of them, in 6 messages."""
    seconds = 6 * ALPHA + 2 * 3 / 4 * 32 * 16 * 4 * BETA
    data = choose(product(), LINE, "split m")
    for overlap in (0.0, 0.25, 1.0):
        (one,) = gradient_reductions(product(), data, rates(overlap=overlap))
        assert (one.input, one.seconds) == (1, seconds * (1 - overlap))
        source = Operation("", "Variable", [], [product().inputs[1]])
        edge = resharding_cost(product().inputs[1], (strategies(source, LINE)[0], 0), (data, 1),
                         rates(overlap=overlap))  # fmt: skip
        assert edge.forward.seconds == 0
        assert edge.seconds == seconds * (1 - overlap)
    # The gradient of what the layer reads is waited for.
    model = choose(product(), LINE, "split n")
    (one,) = gradient_reductions(product(), model, rates(overlap=1.0))
    assert (one.input, one.hidden) == (0, 0.0)
    assert one.seconds == 6 * ALPHA + 2 * 3 / 4 * 64 * 32 * 4 * BETA


def test_an_edge_has_the_relayout_and_that_of_the_gradient():
    layer = product(k=32, n=32)
    split = choose(layer, LINE, "split n")
    edge = resharding_cost(layer.outputs[0], (split, 0), (split, 0), rates())
    assert [str(step) for step in edge.forward.steps] == ["all_gather over x, dimension 1"]
    assert [str(step) for step in edge.backward.steps] == ["reduce_scatter over x, dimension 1"]
    v = 64 * 32 * 4
    assert edge.seconds == 2 * (3 * ALPHA + 3 / 4 * v * BETA)
    assert edge.received_bytes == 2 * 3 * v
    alone = resharding_cost(layer.outputs[0], (split, 0), (split, 0), rates(), training=False)
    assert alone.backward is None and alone.received_bytes == 3 * v
    ids = dataclasses.replace(layer.outputs[0], dtype="int32")
    source = Operation("", "Placeholder", [], [ids])
    use = Operation("", "OneHot", [ids], [Tensor("h", (64, 32, 8))])
    assert resharding_cost(ids, (strategies(source, LINE)[0], 0), (strategies(use, LINE)[0], 0)
                     ).backward is None  # fmt: skip


def test_errors_of_rates():
    with pytest.raises(LayoutError) as caught:
        Rates(LINE, {"x": Link(0, 0)}, -1.0, math.nan, "fast", 1.5)
    assert caught.value.problems == (
        "overlap is a share, from 0 to 1, got 1.5",
        "seconds_per_byte is a finite number, 0 or more, got nan",
        "seconds_per_flop is a finite number, 0 or more, got -1.0",
        "seconds_per_operation is a finite number, 0 or more, got 'fast'",
    )
    with pytest.raises(LayoutError) as caught:
        operation_cost(strategies(product(), SQUARE)[0], rates())
    assert str(caught.value) == (
        "the strategy is for mesh 'x:2;y:4', and the rates are for 'x:4'; take both for the same "
        "one"
    )
    with pytest.raises(LayoutError, match="have no link"):
        Rates(SQUARE, {"x": Link(0, 0)}, 0.0)
