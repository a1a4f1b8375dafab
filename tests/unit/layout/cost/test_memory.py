# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bytes in memory while a graph runs, operation by operation."""

from __future__ import annotations

import pytest

from tests.unit.layout.cost.test_model import LINE, choose, product
from tf_fuse.layout import LayoutError
from tf_fuse.layout.cost.memory import memory
from tf_fuse.layout.strategies.strategy import strategies
from tf_fuse.layout.types.operation import Operation, Tensor


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
