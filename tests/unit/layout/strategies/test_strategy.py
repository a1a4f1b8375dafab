# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Strategies: what is enumerated, published costs of matrix products, and all error texts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.unit.layout.edge_costs import gradient_reductions, resharding_cost
from tf_fuse.layout import LayoutError, LayoutRules, Mesh, from_sbp, plan_relayout, to_sbp
from tf_fuse.layout.operators import markdown, rule_of, without_rule
from tf_fuse.layout.strategies.strategy import Allowed, Choice, Strategy, strategies
from tf_fuse.layout.types.operation import Operation, Tensor, check_graph

LINE = Mesh({"x": 4})
DOCS = Path(__file__).resolve().parents[4] / "docs" / "layout.md"


def product(m, k, n, **attributes) -> Operation:
    inputs = [Tensor("x", (m, k)), Tensor("w", (k, n), parameter=True)]
    return Operation("y", "MatMul", inputs, [Tensor("y", (m, n))], attributes)


def signatures(strategy: Strategy) -> tuple[str, ...]:
    return tuple(" ".join(to_sbp(one)) for one in (*strategy.inputs, *strategy.outputs))


def choose(operation: Operation, mesh: Mesh, *words: str) -> Strategy:
    """The strategy with these choices, one for each axis."""
    (found,) = [one for one in strategies(operation, mesh) if str(one) == ", ".join(words)]
    return found


def test_signatures_of_a_matrix_product_are_those_of_oneflow():
    assert list(map(signatures, strategies(product(8, 16, 4), LINE))) == [
        ("B", "B", "B"),
        ("S(0)", "B", "S(0)"),
        ("S(1)", "S(0)", "P"),
        ("B", "S(1)", "S(1)"),
        ("P", "B", "P"),
        ("B", "P", "P"),
    ]


def test_strategies_of_two_axes_are_products():
    """6 x 6, all of them: each of m, k and n can be split over both axes."""
    found = strategies(product(8, 16, 4), Mesh({"x": 2, "y": 2}))
    assert len(found) == len(set(found)) == 36
    assert found == strategies(product(8, 16, 4), Mesh({"x": 2, "y": 2}))
    assert str(found[0]) == "replicate, replicate"
    assert str(found[1]) == "replicate, split m"
    assert str(found[-1]) == "partial input 1, partial input 1"
    one = choose(product(8, 16, 4), Mesh({"x": 2, "y": 2}), "split m", "split n")
    assert signatures(one) == ("S(0) B", "B S(1)", "S(0) S(1)")
    assert [str(layout) for layout in one.input_gradients] == [
        "[8/x, 16] sum over y on x:2;y:2",
        "[16, 4/y] sum over x on x:2;y:2",
    ]
    assert (one.flops, one.backward_flops) == (2 * 8 * 16 * 4 // 4, 4 * 8 * 16 * 4 // 4)
    assert (one.input_bytes, one.parameter_bytes, one.output_bytes) == (
        (4 * 16 + 16 * 2) * 4, 16 * 2 * 4, 4 * 2 * 4,
    )  # fmt: skip


def test_names_do_not_matter_and_uneven_or_useless_splits_are_left_out():
    other = Operation("z", "MatMul", [Tensor("p", (8, 16)), Tensor("q", (16, 4), parameter=True)],
                      [Tensor("r", (8, 4))])  # fmt: skip
    assert strategies(other, LINE) is strategies(product(8, 16, 4), LINE)
    assert list(map(str, strategies(product(6, 16, 7), LINE))) == [
        "replicate", "split k", "partial input 0", "partial input 1",
    ]  # fmt: skip
    # 4 elements cannot be split over both axes of four.
    two = Mesh({"x": 4, "y": 4})
    assert "split n, split n" not in list(map(str, strategies(product(16, 16, 4), two)))
    assert list(map(str, strategies(product(8, 16, 4), Mesh({"x": 1})))) == ["replicate"]


def test_what_is_allowed():
    operation = product(8, 16, 4)
    square = Mesh({"x": 2, "y": 2})
    one_each = strategies(operation, square, Allowed(stacked=False))
    # Splits of one factor over both axes are gone.
    assert len(one_each) == 36 - 3
    assert all(len(axes) < 2 for one in one_each for tensor in one.inputs for axes in tensor.splits)
    whole = strategies(operation, square, Allowed(partial=False))
    assert len(whole) == 16
    assert not any(tensor.partial for one in whole for tensor in one.inputs)


def test_what_has_no_sums_is_not_partial():
    """Truth values; and quotients of whole numbers, which are rounded one by one."""
    found = []
    for kind in ("GatherV2", "Div"):
        for dtype in ("bool", "int32", "float32"):
            x, rows = Tensor("x", (8, 4), dtype), Tensor("i", (8,), "int32")
            inputs = [x, rows if kind == "GatherV2" else x]
            one = Operation("y", kind, inputs, [Tensor("y", (8, 4), dtype)])
            found.append(sum(bool(each.outputs[0].partial) for each in strategies(one, LINE)))
    assert found == [0, 2, 2, 0, 0, 1]


def test_strategies_with_the_same_layouts_are_there_once():
    """Of a row by a column, only the shared factor can be split; the others leave nothing."""
    operation = Operation(
        "y", "Einsum", [Tensor("x", (4,)), Tensor("w", (4,))], [Tensor("y", ())],
        {"equation": "a,a->"},
    )  # fmt: skip
    assert list(map(signatures, strategies(operation, LINE))) == [
        ("B", "B", "B"), ("S(0)", "S(0)", "P"), ("P", "B", "P"), ("B", "P", "P"),
    ]  # fmt: skip


def test_operations_without_a_rule_are_replicated_and_reported():
    odd = Operation("odd", "Bessel", [Tensor("x", (8, 8))], [Tensor("y", (8, 8))])
    random = Operation("noise", "RandomShuffle", [], [Tensor("z", (8,))])
    again = Operation("even", "Bessel", [Tensor("y", (8, 8))], [Tensor("v", (8, 8))])
    (only,) = strategies(odd, Mesh({"x": 2, "y": 2}))
    assert not only.known and signatures(only) == ("B B", "B B")
    operations = [odd, random, again, product(8, 16, 4)]
    assert without_rule(operations) == {"Bessel": ("even", "odd"), "RandomShuffle": ("noise",)}
    assert strategies(product(8, 16, 4), LINE)[0].known


def moved(operation, strategy) -> int:
    """Bytes that all devices receive for what is partial, forward and backward."""
    found = sum(one.plan.received_bytes for one in gradient_reductions(operation, strategy))
    for tensor, layout in zip(operation.outputs, strategy.outputs, strict=True):
        if layout.partial:
            letters = [one if one != "P" else "B" for one in to_sbp(layout)]
            whole = from_sbp(layout.mesh, layout.shape, letters)
            found += plan_relayout(layout, whole, tensor.item_bytes).received_bytes
    return found


@pytest.mark.parametrize("p", [2, 4, 8])
def test_one_axis_costs_what_oneflow_says(p):
    """Data parallel: 2 (p - 1) V_w. Model parallel, output or input split: 2 (p - 1) V_y."""
    mesh = Mesh({"x": p})
    b, d = 64, 32
    layer = product(b, d, d)
    v_w, v_y = 4 * d * d, 4 * b * d
    data = choose(layer, mesh, "split m")
    weights = [one.plan.received_bytes for one in gradient_reductions(layer, data)]
    assert weights == [2 * (p - 1) * v_w]
    # The next layer is split in the same way; what lies between the two is the cost.
    for words in ("split n", "split k"):
        both = choose(layer, mesh, words)
        edge = resharding_cost(layer.outputs[0], (both, 0), (both, 0))
        assert edge.received_bytes == 2 * (p - 1) * v_y
        assert [one.plan.received_bytes for one in gradient_reductions(layer, both)
                if one.input == 1] == []  # fmt: skip
    edge = resharding_cost(layer.outputs[0], (data, 0), (data, 0))
    assert edge.received_bytes == 0


@pytest.mark.parametrize(("p1", "p2"), [(2, 2), (2, 4), (4, 2)])
def test_two_axes_cost_what_oneflow_says(p1, p2):
    """2 (p2 - 1) V_y + 2 (p1 - 1) V_w; SUMMA's start 2 (p2 - 1) V_x + 2 (p1 - 1) V_w."""
    mesh = Mesh({"x": p1, "y": p2})
    b, d = 64, 32
    layer = product(b, d, d)
    v_x = v_y = 4 * b * d
    v_w = 4 * d * d
    for words in (("split m", "split n"), ("split m", "split k")):
        chosen = choose(layer, mesh, *words)
        weights = [
            one.plan.received_bytes for one in gradient_reductions(layer, chosen) if one.input == 1
        ]
        assert weights == [2 * (p1 - 1) * v_w]
        edge = resharding_cost(layer.outputs[0], (chosen, 0), (chosen, 0))
        assert edge.received_bytes == 2 * (p2 - 1) * v_y
    # Both inputs lie in blocks, and are brought to where they are multiplied.
    chosen = choose(layer, mesh, "split m", "split n")
    total = 0
    for i, tensor in enumerate(layer.inputs):
        source = Operation("", "Variable", [], [tensor])
        blocks = choose(source, mesh, "split 0.0", "split 0.1")
        total += resharding_cost(tensor, (blocks, 0), (chosen, i)).received_bytes
    assert total == 2 * (p2 - 1) * v_x + 2 * (p1 - 1) * v_w


@pytest.mark.parametrize("root", [2, 4])
def test_a_square_mesh_with_equal_sizes_costs_less(root):
    """4 (sqrt(p) - 1) V < 2 (p - 1) V."""
    d, p = 64, root * root
    layer = product(d, d, d)
    value = 4 * d * d
    chosen = choose(layer, Mesh({"x": root, "y": root}), "split m", "split n")
    edge = resharding_cost(layer.outputs[0], (chosen, 0), (chosen, 0)).received_bytes
    edge += sum(
        one.plan.received_bytes for one in gradient_reductions(layer, chosen) if one.input == 1
    )
    assert edge == 4 * (root - 1) * value < 2 * (p - 1) * value


TWO_LAYERS = [  # The rules of Mesh-TensorFlow's table 1, and what it says is communicated.
    ("", lambda b, io, h, r, c, p: 0),
    ("batch:r", lambda b, io, h, r, c, p: io * h),
    ("hidden:r", lambda b, io, h, r, c, p: b * io),
    ("batch:r;hidden:c", lambda b, io, h, r, c, p: io * (b // r + h // c)),
    (
        "batch:r;hidden:c;io:p",
        lambda b, io, h, r, c, p: (
            b // r * io // p + b // r * h // c + io // p * h // c
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "expected"), TWO_LAYERS, ids=[one[0] for one in TWO_LAYERS])
def test_two_layers_cost_what_mesh_tensorflow_says(rules, expected):
    """Each device all-reduces so many elements in each of the two products, with gradients."""
    b, io, h = 64, 32, 128
    sizes = {"r": 2, "c": 4, "p": 2}
    laid = LayoutRules.from_text(rules)
    mesh = Mesh(sizes)
    reduced = 0
    for k, n in (("io", "hidden"), ("hidden", "io")):
        of = {"batch": b, "io": io, "hidden": h}
        layer = product(b, of[k], of[n])
        names = {laid.axis_of("batch"): "m", laid.axis_of(k): "k", laid.axis_of(n): "n"}
        words = [f"split {names[axis]}" if axis in names else "replicate" for axis in mesh.axes]
        chosen = choose(layer, mesh, *words)
        partial = [one for one in (*chosen.outputs, *chosen.input_gradients) if one.partial]
        reduced += sum(math.prod(one.slice_shape) for one in partial)
        assert chosen.flops == 2 * b * io * h // math.prod(
            sizes[axis] for axis in mesh.axes if axis in names
        )
    assert reduced == 2 * expected(b, io, h, *sizes.values())


def test_three_axes_move_what_their_all_reduces_do():
    """m, k and n over an axis each: each of the three matrices is all-reduced over one axis."""
    m, k, n, (p1, p2, p3) = 16, 32, 64, (2, 4, 2)
    layer = product(m, k, n)
    chosen = choose(layer, Mesh({"x": p1, "y": p2, "z": p3}), "split m", "split k", "split n")
    v_x, v_w, v_y = 4 * m * k, 4 * k * n, 4 * m * n
    assert moved(layer, chosen) == 2 * ((p2 - 1) * v_y + (p1 - 1) * v_w + (p3 - 1) * v_x)
    assert chosen.flops == 2 * m * k * n // (p1 * p2 * p3)


def test_a_split_vocabulary_moves_rows_and_not_the_table():
    table = Tensor("table", (4096, 8), parameter=True)
    operation = Operation(
        "rows", "GatherV2", [table, Tensor("ids", (16,), "int32")], [Tensor("y", (16, 8))]
    )
    split = choose(operation, LINE, "split vocabulary")
    assert moved(operation, split) == 2 * 3 * 16 * 8 * 4
    assert split.parameter_bytes == table.bytes // 4
    assert split.input_gradients[1] is None


def test_a_split_softmax_exchanges_a_number_for_each_row():
    operation = Operation("p", "Softmax", [Tensor("x", (6, 32))], [Tensor("p", (6, 32))])
    split = choose(operation, LINE, "split d1")
    assert list(map(str, split.forward)) == [
        "all_reduce (max) of 24 bytes over x",
        "all_reduce (sum) of 24 bytes over x",
    ]
    assert [one.received_bytes for one in split.forward] == [2 * 3 * 24] * 2
    assert [one.messages for one in split.backward] == [6]
    # Two axes on one dimension are one group.
    both = choose(operation, Mesh({"x": 2, "y": 4}), "split d1", "split d1")
    assert both.forward[0].axes == ("x", "y")
    assert both.forward[0].received_bytes == 2 * 7 * 24
    assert choose(operation, Mesh({"x": 2}), "split d0").forward == ()


def bad(kind, inputs, outputs, **attributes):
    ins = [Tensor("", one) for one in inputs]
    outs = [Tensor("", one) for one in outputs]
    return Operation("op", kind, ins, outs, attributes)


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (bad("MatMul", [(2, 3)], [(2, 3)]), "MatMul 'op' has 1 inputs, expected 2"),
        (bad("MatMul", [(2, 3), (3,)], [(2, 3)]),
         "MatMul 'op': input 1 has shape [3], expected 2 dimensions"),
        (bad("MatMul", [(2, 3), (4, 5)], [(2, 5)]),
         "MatMul 'op': dimension 1 of input 0 has 3 and dimension 0 of input 1 has 4 elements, but "
         "they are the same range 'k'; make them equal"),
        (bad("BatchMatMulV2", [(3,), (3, 2)], [(2,)]),
         "BatchMatMulV2 'op' has shapes [3], [3, 2] and [2]; each has 2 dimensions or more"),
        (bad("Einsum", [(2,)], [(2,)]),
         "Einsum 'op': attribute 'equation' is missing; there are: none"),
        (bad("Einsum", [(2,)], [(2,)], equation="a=a"),
         "Einsum 'op': equation 'a=a' is not of the form 'ab,bc->ac': letters for the dimensions "
         "of each input, an arrow, those of the output"),
        (bad("Einsum", [(2,)], [(2, 2)], equation="a->ab"),
         "Einsum 'op': equation 'a->ab' has 'b' in no input"),
        (bad("Softmax", [(2, 3)], [(2, 3)], axis=2),
         "Softmax 'op': dimension 2 of a tensor with 2 dimensions; they are 0 to 1, or -1 to -2 "
         "from the end"),
        (bad("Reshape", [(2, 3)], [(5,)]),
         "Reshape 'op' has 6 elements before, [2, 3], and 5 after, [5]; a reshape keeps their "
         "number"),
        (bad("Transpose", [(2, 3)], [(3, 2)], perm=(1, 1)),
         "Transpose 'op': perm [1, 1] is not an order of the 2 dimensions of [2, 3]; name each "
         "once"),
        (bad("Slice", [(2, 3)], [(2, 2)], begin=(0,)),
         "Slice 'op': begin [0], strides [1, 1] and shrink [] do not fit [2, 3] and [2, 2]; begin "
         "and strides have a number for each dimension of the larger one, and the smaller one has "
         "all that shrink does not name"),
        (bad("Pad", [(2, 3)], [(2, 4)], paddings=[[0, 1]]),
         "Pad 'op': paddings ((0, 1),) are a pair for each of 2 dimensions"),
        (bad("Pad", [(2, 3)], [(2, 4)], paddings=3),
         "Pad 'op': an attribute is of the wrong kind: object of type 'int' has no len(); they "
         "are: paddings=3"),
        (bad("BiasAdd", [(2,), (2,)], [(2,)]),
         "BiasAdd 'op' has a tensor of 1 dimensions; it is for 2 or more"),
        (bad("Tile", [(2, 3)], [(2, 6)], multiples=[2]),
         "Tile 'op': multiples [2] are a number for each of 2 dimensions"),
        (bad("GatherV2", [(2, 3), (4,)], [(4, 3)], batch_dims=1),
         "GatherV2 'op': batch_dims is 1, which is 0 or more, and no more than axis 0 and the 1 "
         "dimensions of the row numbers"),
        (bad("Conv2D", [(1, 4, 4, 1), (2, 2, 1, 1)], [(1, 4, 4, 1)], strides=(1, 1)),
         "Conv2D 'op': attribute 'strides' has a number for each of 4 dimensions, got (1, 1)"),
        (bad("DepthwiseConv2dNative", [(1, 4, 4, 2), (1, 1, 2, 2)], [(1, 4, 4, 3)]),
         "DepthwiseConv2dNative 'op': dimension 3 of output 0 has 3 elements, but it is "
         "'channels' (2) x 'multiplier' (2); make it 4"),
        (bad("ResourceApplyAdam", [(2, 3), (2, 3), (2, 3), (3,)], [(2, 3)] * 3),
         "ResourceApplyAdam 'op': input 3 has shape [3], expected the variable's, [2, 3], or a "
         "scalar"),
        (bad("Add", [(2, 3), (2, 4)], [(2, 3)]),
         "Add 'op': dimension 1 of input 0 has 3 and dimension 1 of input 1 has 4 elements, but "
         "they are the same range 'd1'; make them equal"),
    ],
    ids=lambda one: one.kind if isinstance(one, Operation) else "",
)  # fmt: skip
def test_operations_that_do_not_fit_are_errors(operation, text):
    for call in (rule_of, lambda one: strategies(one, LINE)):
        with pytest.raises(LayoutError) as caught:
            call(operation)
        assert str(caught.value) == text


def test_a_rule_for_more_dimensions_than_there_are_is_an_error():
    """Inputs that are longer than what they are broadcast to."""
    with pytest.raises(LayoutError) as caught:
        rule_of(bad("Relu", [(2, 3, 4)], [(3, 4)]))
    assert str(caught.value) == (
        "Relu 'op': input 0 has shape [2, 3, 4], which is not broadcast to [3, 4]"
    )


def test_errors_of_tensors_and_graphs():
    with pytest.raises(LayoutError) as caught:
        Tensor("x", (0, 2), "float7")
    assert caught.value.problems == (
        "tensor 'x': dimension 0: a size is a whole number, 1 or more, got 0",
        "tensor 'x': type 'float7' has no known size; there are: bfloat16, bool, complex128, "
        "complex64, float16, float32, float64, half, int16, int32, int64, int8, uint16, uint32, "
        "uint64, uint8",
    )
    x, y, z = (Tensor(name, (2,)) for name in "xyz")
    graph = [
        Operation("a", "Relu", [y], [z]),
        Operation("b", "Relu", [x], [y]),
        Operation("b", "Relu", [Tensor("x", (3,), parameter=True)], [y]),
    ]
    with pytest.raises(LayoutError) as caught:
        check_graph(graph)
    assert caught.value.problems == (
        "2 operations have the name 'b'; give each a name of its own",
        "Relu 'a' reads tensor 'y', which 'b' makes only after it; sort the operations, each "
        "after those that it reads from",
        "tensor 'x' is float32[2] at 'b' and parameter float32[3] at 'b'; a name is for one tensor",
        "tensor 'y' is made by 'b' and by 'b'; give one of them another name",
    )


def test_attributes_are_kept_as_what_can_be_compared():
    one = Operation("s", "Sum", [], [], {"keep_dims": True, "axes": np.array([1, 0])})
    assert one.attributes == (("axes", (1, 0)), ("keep_dims", True))
    assert hash(one) == hash(Operation("s", "Sum", [], [], [("axes", [1, 0]), ("keep_dims", True)]))
    with pytest.raises(LayoutError) as caught:
        Operation("s", "Sum", [], [], {"axes": [{}], "x": {}})
    assert caught.value.problems == (
        "Sum 's': attribute 'axes' is ({},), which cannot be hashed; give a number, a string, or a "
        "list of these",
        "Sum 's': attribute 'x' is {}, which cannot be hashed; give a number, a string, or a list "
        "of these",
    )


def test_choices_in_words():
    assert list(map(str, [Choice(), Choice("split", "m"), Choice("partial", "", (0, 1))])) == [
        "replicate", "split m", "partial inputs 0, 1",
    ]  # fmt: skip


def test_the_table_of_the_docs_is_that_of_the_code():
    assert markdown() in DOCS.read_text(encoding="utf-8")
