# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rules for named dimensions of a Transformer: Mesh-TensorFlow's layout, and what it moves."""

from __future__ import annotations

import pytest

from tests.unit.layout.edge_costs import gradient_reductions, resharding_cost
from tf_fuse.layout import LayoutError, LayoutRules, Mesh
from tf_fuse.layout.operators import without_rule
from tf_fuse.layout.strategies.by_name import named_strategy
from tf_fuse.layout.strategies.insert_forks import with_forks
from tf_fuse.layout.strategies.name_propagation import propagate
from tf_fuse.layout.strategies.strategy import strategies
from tf_fuse.layout.types.operation import Operation, Tensor

B, S, D, HEADS, K, F, VOCAB = 8, 16, 32, 4, 8, 128, 64
SHAPES = {
    "ids": (B, S), "labels": (B * S,), "table": (VOCAB, D), "emb": (B, S, D),
    "scale1": (D,), "shift1": (D,), "n1": (B, S, D), "scale2": (D,), "shift2": (D,),
    "n2": (B, S, D), **dict.fromkeys(["wq", "wk", "wv"], (D, HEADS, K)),
    **dict.fromkeys("qkva", (B, HEADS, S, K)), "wo": (HEADS, K, D), "o": (B, S, D),
    **dict.fromkeys(["norm1", "scaled1", "norm2", "scaled2"], (B, S, D)),
    **dict.fromkeys(["scores", "weights"], (B, HEADS, S, S)),
    "r1": (B, S, D), "w1": (D, F), "f1": (B, S, F), "g": (B, S, F), "w2": (F, D), "f2": (B, S, D),
    "r2": (B, S, D), "out": (D, VOCAB), "logits": (B, S, VOCAB), "flat": (B * S, VOCAB),
    "loss": (B * S,), "back": (B * S, VOCAB),
}  # fmt: skip
PARAMETERS = (
    "table",
    "scale1",
    "shift1",
    "scale2",
    "shift2",
    "wq",
    "wk",
    "wv",
    "wo",
    "w1",
    "w2",
    "out",
)
MESH = Mesh({"rows": 2, "cols": 4})
LAYOUT = "batch:rows;tokens:rows;vocab:cols;d_ff:cols;heads:cols"
RENAMED = ["k", "v"]
ANNOTATIONS = {
    "emb": ["batch", "seq", "d_model"], "table": ["vocab", "d_model"],
    **{one: ["d_model", "heads", None] for one in ("wq", "wk", "wv")},
    **{one: ["batch", "heads", "keys", None] for one in RENAMED},
    "w1": ["d_model", "d_ff"], "out": ["d_model", "vocab"], "flat": ["tokens", "vocab"],
}  # fmt: skip


def tensor(name: str) -> Tensor:
    dtype = "int32" if name in ("ids", "labels") else "float32"
    return Tensor(name, SHAPES[name], dtype, name in PARAMETERS)


def op(kind: str, inputs: str, outputs: str, **attributes) -> Operation:
    ins, outs = ([tensor(one) for one in names.split()] for names in (inputs, outputs))
    return Operation(outs[0].name, kind, ins, outs, attributes)


def norm(x: str, number: int) -> list[Operation]:
    """A normalization of rows, with a scale and an offset."""
    return [
        op("Softmax", x, f"norm{number}"),
        op("Mul", f"norm{number} scale{number}", f"scaled{number}"),
        op("AddV2", f"scaled{number} shift{number}", f"n{number}"),
    ]


def transformer() -> list[Operation]:
    """One layer, from row numbers to the loss."""
    project = "bsd,dhk->bhsk"
    return [
        *(op("Variable", "", name) for name in PARAMETERS),
        op("Placeholder", "", "ids"),
        op("Placeholder", "", "labels"),
        op("GatherV2", "table ids", "emb"),
        *norm("emb", 1),
        *(op("Einsum", f"n1 w{one}", one, equation=project) for one in "qkv"),
        op("Einsum", "q k", "scores", equation="bhsd,bhtd->bhst"),
        op("Softmax", "scores", "weights"),
        op("Einsum", "weights v", "a", equation="bhst,bhtd->bhsd"),
        op("Einsum", "a wo", "o", equation="bhsk,hkd->bsd"),
        op("AddV2", "emb o", "r1"),
        *norm("r1", 2),
        op("Einsum", "n2 w1", "f1", equation="bsd,df->bsf"),
        op("Relu", "f1", "g"),
        op("Einsum", "g w2", "f2", equation="bsf,fd->bsd"),
        op("AddV2", "r1 f2", "r2"),
        op("Einsum", "r2 out", "logits", equation="bsd,dv->bsv"),
        op("Reshape", "logits", "flat"),
        op("SparseSoftmaxCrossEntropyWithLogits", "flat labels", "loss back"),
    ]


def chosen(rules: str = LAYOUT):
    operations = transformer()
    names = propagate(operations, ANNOTATIONS, RENAMED)
    laid = LayoutRules.from_text(rules)
    return operations, {one.name: named_strategy(one, names, laid, MESH) for one in operations}


def test_names_come_to_all_of_it():
    names = propagate(transformer(), ANNOTATIONS, RENAMED).made
    assert names["ids"] == ("batch", "seq")
    assert names["q"] == names["k"] == names["a"] == ("batch", "heads", "seq", None)
    assert names["wo"] == ("heads", None, "d_model")
    assert names["w2"] == ("d_ff", "d_model")
    assert names["logits"] == ("batch", "seq", "vocab")
    assert (names["labels"], names["back"]) == (("tokens",), ("tokens", "vocab"))
    assert without_rule(transformer()) == {}


def test_what_is_partial_is_what_megatron_all_reduces():
    """Forward behind the two split layers and the embedding; backward in front of such layers."""
    operations, strategy = chosen()
    partial = {
        name: one.outputs[0].partial for name, one in strategy.items() if one.outputs[0].partial
    }
    assert partial == {"emb": ("cols",), "o": ("cols",), "f2": ("cols",)}
    in_front = {
        (one.name, tensor_.name): gradient.partial
        for one in operations
        for tensor_, gradient in zip(one.inputs, strategy[one.name].input_gradients, strict=True)
        if gradient is not None and gradient.partial and not tensor_.parameter
    }
    assert in_front == dict.fromkeys(
        [("q", "n1"), ("k", "n1"), ("v", "n1"), ("f1", "n2"), ("logits", "r2")], ("cols",)
    )
    weights = {
        tensor_.name: gradient.partial
        for one in operations
        for tensor_, gradient in zip(one.inputs, strategy[one.name].input_gradients, strict=True)
        if gradient is not None and tensor_.parameter
    }
    assert weights == dict.fromkeys(PARAMETERS, ("rows",))


def test_bytes_of_the_whole_step():
    operations, strategy = chosen()
    maker = {tensor_.name: (one.name, i) for one in operations
             for i, tensor_ in enumerate(one.outputs)}  # fmt: skip
    forward = {}
    backward = {}
    for one in operations:
        for i, tensor_ in enumerate(one.inputs):
            name, output = maker[tensor_.name]
            edge = resharding_cost(tensor_, (strategy[name], output), (strategy[one.name], i))
            if edge.forward.received_bytes:
                forward[tensor_.name, one.name] = edge.forward.received_bytes
            if edge.backward and edge.backward.received_bytes:
                backward[tensor_.name, one.name] = edge.backward.received_bytes
    activation, (rows, cols) = 4 * B * S * D, MESH.shape
    reduced = 2 * (cols - 1) * activation
    # Each reader is charged for itself: the embedding and the first sum have two.
    assert forward == {
        ("emb", "norm1"): reduced, ("emb", "r1"): reduced, ("o", "r1"): reduced,
        ("f2", "r2"): reduced,
    }  # fmt: skip
    split = {name for name in PARAMETERS if strategy[name].outputs[0].splits != ((),) * len(
        SHAPES[name])}  # fmt: skip
    assert split == {"table", "wq", "wk", "wv", "wo", "w1", "w2", "out"}
    expected = {
        (name, one.name): 2 * (rows - 1) * tensor(name).bytes * (1 if name in split else cols)
        for name in PARAMETERS
        for one in operations
        if name in [each.name for each in one.inputs]
    }
    for reader in (("n1", "q"), ("n1", "k"), ("n1", "v"), ("n2", "f1"), ("r2", "logits")):
        expected[reader] = reduced
    assert backward == expected
    # The loss needs a number for each token from each device that has a part of the vocabulary.
    tokens = 4 * B * S
    assert [one.received_bytes for one in strategy["loss"].forward] == [
        2 * (cols - 1) * tokens, 2 * (cols - 1) * 2 * tokens,
    ]  # fmt: skip
    assert strategy["loss"].forward[0].axes == ("cols",)
    assert gradient_reductions(operations[-1], strategy["loss"]) == ()


def test_with_forks_each_sum_is_reduced_once():
    """Megatron's two all-reduces of a layer in each direction, and the embedding's and the loss's.

    Each fork takes what is cheapest between its maker and its readers.
    """
    names = propagate(with_forks(transformer()), ANNOTATIONS, RENAMED)
    operations = with_forks(transformer())
    forks = [one for one in operations if one.kind == "Identity"]
    assert [one.name for one in forks] == ["emb/fork", "n1/fork", "r1/fork"]
    laid = LayoutRules.from_text(LAYOUT)
    strategy = {one.name: named_strategy(one, names, laid, MESH) for one in operations}
    maker = {tensor_.name: (one.name, i) for one in operations
             for i, tensor_ in enumerate(one.outputs)}  # fmt: skip

    def edges(only=None):
        for one in operations:
            for i, tensor_ in enumerate(one.inputs):
                name, output = maker[tensor_.name]
                if not tensor_.parameter and only in (None, one.name, name):
                    yield resharding_cost(
                        tensor_, (strategy[name], output), (strategy[one.name], i)
                    )

    def moved(only=None):
        return sum(edge.received_bytes for edge in edges(only))

    for fork in forks:
        costs = []
        for one in strategies(fork, MESH):
            strategy[fork.name] = one
            costs.append((moved(fork.name), one))
        strategy[fork.name] = min(costs, key=lambda each: each[0])[1]
    reduced = 2 * (MESH.shape[1] - 1) * 4 * B * S * D
    # Forward the embedding and the two layers' outputs; backward n1, n2 and r2.
    assert moved() == 6 * reduced
    assert str(strategy["n1/fork"]) == "split d0, partial gradient"


def test_a_fork_has_a_name_of_its_own():
    x, y = Tensor("x", (4,)), Tensor("x/fork", (4,))
    with pytest.raises(LayoutError) as caught:
        with_forks([Operation("a", "Relu", [x], [y]), Operation("b", "Relu", [x],
                                                                [Tensor("z", (4,))])])  # fmt: skip
    assert str(caught.value) == "the name 'x/fork' is taken; it is for a copy of 'x'"


def test_rules_that_cannot_be_are_errors():
    with pytest.raises(LayoutError) as caught:
        chosen("batch:rows;seq:rows")
    assert "'batch', 'seq'" in str(caught.value) and "are all on axis 'rows'" in str(caught.value)
    one = op("Relu", "f1", "g")
    names = propagate([one], {"f1": ["batch", None, "d_ff"]})
    with pytest.raises(LayoutError) as caught:
        named_strategy(one, names, LayoutRules.from_text("batch:x;d_ff:y"), Mesh({"x": 3}))
    assert caught.value.problems == (
        "Relu 'g': dimension 'batch' has 8 elements, which is not a multiple of the 3 devices of "
        "axis 'x'; pad it to 9, or leave out the rule batch:x",
        "rule d_ff:y: axis 'y' is not in mesh 'x:3'; its axes are: x",
    )
    with pytest.raises(LayoutError) as caught:
        named_strategy(one, propagate([one], {"f1": ["a", "b", "c"]}),
                       LayoutRules.from_text("a:rows;b:rows"), MESH)  # fmt: skip
    assert str(caught.value) == (
        "Relu 'g' has the dimensions 'a', 'b', which are all on axis 'rows'; keep the rule of one "
        "of them, or rename a tensor"
    )
