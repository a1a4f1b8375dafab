# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention as one operation: softmax(q k / sqrt(d)) v."""

from __future__ import annotations

from tf_fuse.layout.operation import Operation
from tf_fuse.layout.operators.contraction import broadcast, check_broadcast
from tf_fuse.layout.operators.rule import Inner, Rule, Work, expect, make

_SCORES = ("batch", "heads", "queries", "keys")


def attention(operation: Operation) -> Rule:
    """`Attention` of q [batch, heads, queries, depth], k [batch, heads, keys, depth] and v.

    v is [batch, heads, keys, values]; a mask that is added to the scores, if there is one, is
    broadcast to [batch, heads, queries, keys].

    Batch and heads are split for nothing, and so are queries. Over split keys the devices find the
    maximum and the sum of each query's row, and the result is partial, as in ring attention (Liu et
    al., 2023), but that queries stay where they are. Over a split depth they add up the scores.
    """
    expect(operation, [4, 4, 4, None] if len(operation.inputs) == 4 else [4, 4, 4], [4])
    q, k, v = (
        ["batch", "heads", *rest]
        for rest in (("queries", "depth"), ("keys", "depth"), ("keys", "values"))
    )
    inputs: list[list[str | None]] = [[*q], [*k], [*v]]
    if len(operation.inputs) == 4:
        shapes = [one.shape for one in operation.inputs]
        whole = (*shapes[0][:3], shapes[1][2])
        check_broadcast(operation, 3, shapes[3], whole)
        names = dict(zip([f"b{i}" for i in range(4)], _SCORES, strict=True))
        mask = broadcast(shapes[3], whole)
        inputs.append([None if one is None else names.get(one, one) for one in mask])
    rows = Work(1, _SCORES[:3])
    return make(
        operation,
        inputs,
        [["batch", "heads", "queries", "values"]],
        sums=["keys"],
        inner=[
            Inner("depth", "sum", Work(1, _SCORES)),
            Inner("keys", "max", rows),
            Inner("keys", "sum", rows),
            Inner("keys", "sum", rows, backward=True),
        ],
        # All devices that split the depth have the same scores.
        shared=[("depth", 2), ("depth", 3)],
        work=[
            Work(2, (*_SCORES, "depth")),
            Work(5, _SCORES),
            Work(2, (*_SCORES, "values")),
        ],
        backward_work=[
            Work(6, (*_SCORES, "depth")),
            Work(8, _SCORES),
            Work(4, (*_SCORES, "values")),
        ],
        temporaries=[Work(2 * operation.inputs[0].item_bytes, _SCORES)],
        linear=[(2,)],
    )
