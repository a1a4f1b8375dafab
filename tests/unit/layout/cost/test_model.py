# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Seconds, bytes in memory, and rates of what was measured."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.layout.edge_costs import gradient_reductions, resharding_cost
from tf_fuse.layout import Hosts, LayoutError, Link, Mesh
from tf_fuse.layout.cost.memory import memory
from tf_fuse.layout.cost.model import Rates, operation_cost
from tf_fuse.layout.profile.calibration import (
    ComputeSample,
    LinkSample,
    calibrate,
    fit_compute,
    fit_link,
)
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


def chain(count: int) -> list[Operation]:
    """A chain of 16 floats each: t0 -> t1 -> ..."""
    return [
        Operation(f"t{i + 1}", "Relu", [Tensor(f"t{i}", (16,))], [Tensor(f"t{i + 1}", (16,))])
        for i in range(count)
    ]


def test_what_is_no_longer_read_is_not_held():
    operations = chain(4)
    whole = [strategies(one, LINE)[0] for one in operations]
    found = memory(operations, whole)
    assert found.held == (128, 128, 128, 128)
    assert (found.peak_bytes, found.at, found.backward) == (128, "t1", False)
    split = [strategies(one, LINE)[1] for one in operations]
    assert memory(operations, split).held == (32, 32, 32, 32)


def test_training_holds_what_gradients_need():
    """Relu keeps its outputs; gradients are of what the operation that runs reads and makes."""
    operations = chain(3)
    whole = [strategies(one, LINE)[0] for one in operations]
    found = memory(operations, whole, training=True)
    # Forward t0 and t1; then t1 and t2, then t1, t2 and t3. Backward, t3's gradient comes from
    # outside and is not counted; that of t2 is, with t1, t2 and t3, then with t1, t2 and t1's; and
    # last t1 with both gradients.
    assert found.held == (128, 128, 192, 256, 256, 192)
    assert (found.peak_bytes, found.at, found.backward) == (256, "t3", True)
    assert [what for _, what in found.largest] == ["gradient of t2", "t1", "t2", "t3"]


def test_parameters_and_copies_are_held():
    w = Tensor("w", (32, 16), parameter=True)
    operations = [
        Operation("w", "Variable", [], [w]),
        Operation("x", "Placeholder", [], [Tensor("x", (64, 32))]),
        product(),
    ]
    chosen = [
        choose(operations[0], LINE, "split 0.0"),
        choose(operations[1], LINE, "replicate"),
        choose(operations[2], LINE, "split n"),
    ]
    found = memory(operations, chosen)
    v_x, v_w, v_y = 64 * 32 * 4, 32 * 16 * 4, 64 * 16 * 4
    assert found.parameter_bytes == v_w // 4
    # The product reads the columns of w, a copy, and makes columns of y.
    assert found.held == (v_w // 4, v_w // 4 + v_x, v_w // 4 + v_x + v_w // 4 + v_y // 4)
    assert found.largest == (
        (v_x, "x"),
        (v_y // 4, "y"),
        (v_w // 4, "w"),
        (v_w // 4, "w as [32, 16/x] on x:4"),
    )


def test_copies_are_held_for_gradients_that_need_them():
    """The rows of x that each device reads, and not x, until the product's gradient has run."""
    operations = [Operation("x", "Placeholder", [], [Tensor("x", (64, 32))]), product()]
    chosen = [choose(operations[0], LINE, "replicate"), choose(operations[1], LINE, "split m")]
    v_x, v_w, v_y = 64 * 32 * 4, 32 * 16 * 4, 64 * 16 * 4
    found = memory(operations, chosen, training=True)
    assert found.held == (
        v_w + v_x,
        v_w + v_x + v_x // 4 + v_y // 4,
        # The gradients of x's rows and of w, which is kept.
        v_w + v_x // 4 + v_x // 4 + v_w,
        v_w + v_w,
    )
    assert found.parameter_bytes == v_w


def test_updates_and_reshapes_need_no_place_of_their_own():
    v, m = (Tensor(name, (8, 4), parameter=True) for name in "vm")
    g = Tensor("g", (8, 4))
    update = Operation("u", "ResourceApplyMomentum",
                       [v, m, Tensor("lr", ()), g, Tensor("mu", ())],
                       [Tensor("v2", (8, 4)), Tensor("m2", (8, 4))])  # fmt: skip
    (one,) = [s for s in strategies(update, LINE) if str(s) == "split d0"]
    assert memory([update], [one]).peak_bytes == 3 * 8 * 4 + 2 * 4
    assert one.output_bytes == 0
    flat = Operation("f", "Reshape", [Tensor("x", (8, 4))], [Tensor("f", (32,))])
    last = Operation("r", "Relu", [Tensor("f", (32,))], [Tensor("r", (32,))])
    chosen = [strategies(flat, LINE)[0], strategies(last, LINE)[0]]
    assert memory([flat, last], chosen).held == (128, 256)


def test_errors_of_memory():
    with pytest.raises(LayoutError) as caught:
        memory(chain(2), [strategies(chain(1)[0], LINE)[0]])
    assert str(caught.value) == ("there are 2 operations and 1 strategies; give one for each")
    assert memory([], []).peak_bytes == 0


def test_links_are_found_again():
    sizes = [(1024, 3), (1 << 20, 3), (1 << 16, 6), (1 << 24, 6)]
    samples = [LinkSample(n, k, 1e-3 * k + 1e-9 * n) for n, k in sizes]
    link, error = fit_link(samples)
    assert link.seconds_per_message == pytest.approx(1e-3, rel=1e-9)
    assert link.seconds_per_byte == pytest.approx(1e-9, rel=1e-9)
    assert error < 1e-9


def test_rates_are_not_negative():
    """Long messages that are as fast as short ones say that bytes cost nothing, not less."""
    samples = [LinkSample(1000, 1, 2.0), LinkSample(2000, 1, 1.0), LinkSample(3000, 1, 1.0)]
    link, error = fit_link(samples)
    assert link.seconds_per_byte == 0.0
    # One number for 2, 1 and 1 s: the least sum of its ratios to them, and theirs to it.
    assert link.seconds_per_message == pytest.approx(math.sqrt(4 / 2.5))
    assert error == pytest.approx(1 - math.sqrt(4 / 2.5) / 2)


@settings(deadline=None, max_examples=50)
@given(
    st.tuples(*[st.floats(1e-12, 1e-3)] * 3),
    st.lists(st.tuples(*[st.integers(1, 10**6)] * 3), min_size=8, max_size=12, unique=True),
)
def test_compute_is_told_as_well_as_by_the_true_rates(true, rows):
    seconds = [sum(a * b for a, b in zip(true, row, strict=True)) for row in rows]
    samples = [ComputeSample(*row, time) for row, time in zip(rows, seconds, strict=True)]
    try:
        found, error = fit_compute(samples)
    except LayoutError as caught:
        assert "do not tell" in str(caught)
        return
    assert error < 1e-6 and min(found) >= 0


def test_calibration_of_a_mesh():
    mesh = Mesh({"x": 2, "one": 1})
    samples = [LinkSample(1000, 1, 2e-3), LinkSample(10**6, 1, 1e-2), LinkSample(10, 4, 4e-3)]
    compute = [
        ComputeSample(10**6, 10, 1, 1e-3), ComputeSample(10, 10**6, 1, 2e-3),
        ComputeSample(10, 10, 100, 1e-2), ComputeSample(10**7, 10**5, 10, 1.2e-2),
    ]  # fmt: skip
    found = calibrate(mesh, {"x": samples}, compute, overlap=0.5)
    assert dict(found.rates.links)["one"] == Link(0.0, 0.0)
    assert dict(found.rates.links)["x"] == fit_link(samples)[0]
    assert found.link_errors == (("x", fit_link(samples)[1]),)
    (flop, byte, each), error = fit_compute(compute)
    assert found.compute_error == error
    rates_ = found.rates
    assert (rates_.seconds_per_flop, rates_.seconds_per_byte) == (flop, byte)
    assert (rates_.seconds_per_operation, rates_.overlap) == (each, 0.5)


def test_errors_of_calibration():
    good = [LinkSample(1, 1, 1.0), LinkSample(2, 1, 1.5)]
    with pytest.raises(LayoutError) as caught:
        calibrate(SQUARE, {"x": good, "q": good}, [])
    assert caught.value.problems == (
        "axis 'y' of mesh 'x:2;y:4' was not measured; give samples of collectives along it",
        "there are samples of axis 'q', and mesh 'x:2;y:4' has the axes x, y",
    )
    with pytest.raises(LayoutError) as caught:
        calibrate(LINE, {"x": [LinkSample(-1, 1, 0.0), LinkSample(1, math.inf, 1.0)]}, [])
    assert caught.value.problems == (
        "axis 'x': sample 0: received_bytes is a finite number, 0 or more, got -1",
        "axis 'x': sample 0: seconds is a finite number above 0, got 0.0; measure with a clock "
        "that is fine enough",
        "axis 'x': sample 1: messages is a finite number, 0 or more, got inf",
    )
    with pytest.raises(LayoutError) as caught:
        fit_link(good[:1])
    assert str(caught.value) == (
        "1 samples are too few for 2 rates, of messages, received_bytes; measure 2 or more"
    )
    with pytest.raises(LayoutError) as caught:
        fit_link([LinkSample(n * 100, n, n * 1.0) for n in (1, 2, 3)], "axis 'x': ")
    assert str(caught.value) == (
        "axis 'x': the samples do not tell the rates of messages, received_bytes from one another: "
        "they grow together in all of them; measure with others, small and large ones"
    )
    with pytest.raises(LayoutError, match="compute: 1 samples are too few for 3 rates"):
        fit_compute([ComputeSample(1, 1, 1, 1.0)])
