# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of operations that read or update rows by their numbers.

If axes split the vocabulary, each device reads its own rows, and zeros for the others. The result
is partial: only the rows that were read move, never the table.
"""

from __future__ import annotations

from collections.abc import Callable

from tf_fuse.layout.operators.rule import Rule, Work, dimension_of, expect, make
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation


def gather(operation: Operation) -> Rule:
    """Return the rule of `GatherV2` and `ResourceGather`, with `axis` and `batch_dims`."""
    expect(operation, [None, None], [None])
    table, ids = (len(one.shape) for one in operation.inputs)
    at = dimension_of(operation, operation.attribute("axis", 0), table)
    batch = operation.attribute("batch_dims", 0)
    if not 0 <= batch <= min(at, ids):
        raise LayoutError(
            f"{operation}: batch_dims is {batch}, which is 0 or more, and no more than axis {at} "
            f"and the {ids} dimensions of the row numbers"
        )
    names = [f"d{i}" if i != at else "vocabulary" for i in range(table)]
    rows = [names[i] if i < batch else f"row{i - batch}" for i in range(ids)]
    output = [*names[:at], *rows[batch:], *names[at + 1 :]]
    return make(
        operation,
        [names, rows],
        [output],
        sums=["vocabulary"],
        extra=[("vocabulary", 11)],
        linear=[(0,)],
        backward_work=[Work(1, tuple(output))],
        constants=[1],
        saved_inputs=(1,),
    )


def one_hot(operation: Operation) -> Rule:
    """Return the rule of `OneHot`, with `axis`; on and off values are scalars."""
    expect(operation, None, [None])
    rank = len(operation.outputs[0].shape)
    at = dimension_of(operation, operation.attribute("axis", -1), rank)
    names = [f"d{i}" if i != at else "depth" for i in range(rank)]
    rows = [name for name in names if name != "depth"]
    return make(
        operation,
        [rows, *([] for _ in operation.inputs[1:])],
        [names],
        extra=[("depth", 5)],
        work=[Work(1, tuple(names))],
        constants=range(len(operation.inputs)),
        saved_inputs=(),
    )


def segment_sum(operation: Operation) -> Rule:
    """Return the rule of `UnsortedSegmentSum` of rows and their segments: the gradient of a gather.

    Where rows are split the result is partial; a device that has some of the segments adds up the
    rows of these.
    """
    expect(operation, [None, None], [None])
    data, ids = (len(one.shape) for one in operation.inputs)
    rows = [f"row{i}" for i in range(ids)]
    names = [f"d{i}" for i in range(data - ids)]
    return make(
        operation,
        [[*rows, *names], rows],
        [["vocabulary", *names]],
        sums=rows,
        extra=[("vocabulary", 7)],
        linear=[(0,)],
        # Row by row.
        work=[Work(16, (*rows, *names))],
        backward_work=[],
        constants=[1],
        saved_inputs=(1,),
    )


def sparse_update(states: int, updates: int, ids: int, flops: int) -> Callable[[Operation], Rule]:
    """Return the rule of an update of some rows of a variable, by their numbers.

    A device that has some of the variable's rows takes those of the updates that are for them, so
    the table stays where it is. All devices see all updates, as each may be for any row.

    Args:
      states: how many of the first inputs, the variable among them, are written. These are the
        outputs, in the same place.
      updates: number of the input with rows, from the end if it is negative.
      ids: likewise, of their numbers.
      flops: for each element of the updates.
    """

    def rule(operation: Operation) -> Rule:
        expect(operation, None, [None] * states)
        count = len(operation.inputs)
        rank = len(operation.outputs[0].shape)
        rows = [f"row{i}" for i in range(len(operation.inputs[ids].shape))]
        names = ["vocabulary", *(f"d{i}" for i in range(1, rank))]
        # One update may be for all rows.
        one_for_all = not operation.inputs[updates].shape
        new = [] if one_for_all else [*rows, *names[1:]]
        written = {updates % count: new, ids % count: rows}
        return make(
            operation,
            [names if i < states else written.get(i, []) for i in range(count)],
            [names] * states,
            fixed=rows,
            extra=[("vocabulary", 20)],
            work=[Work(flops, tuple(rows + names[1:]))],
            backward_work=(),
            constants=range(count),
            loose=range(states),
            saved_inputs=(),
            aliases=[(i, i) for i in range(states)],
        )

    return rule
