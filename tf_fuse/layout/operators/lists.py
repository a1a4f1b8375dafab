# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of lists of tensors, which loops read and make.

A list has the shape of its elements after their number. The dimensions of elements can be split;
all devices have slices of all elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tf_fuse.layout.operators.rule import Rule, Written, make
from tf_fuse.layout.types.operation import Operation


def empty(operation: Operation) -> Rule:
    """Return the rule of `EmptyTensorList` and `TensorListReserve`, with a number of elements."""
    return _rule(operation, [None], "L")


def from_tensor(operation: Operation) -> Rule:
    """Return the rule of `TensorListFromTensor`: the first dimension is that of elements."""
    return _rule(operation, ["L"], "L", [(0,)])


def stack(operation: Operation) -> Rule:
    """Return the rule of `TensorListStack`."""
    return _rule(operation, ["L"], "L", [(0,)])


def get_item(operation: Operation) -> Rule:
    """Return the rule of `TensorListGetItem` of a list and a number."""
    return _rule(operation, ["L", None], "e", [(0,)])


def set_item(operation: Operation) -> Rule:
    """Return the rule of `TensorListSetItem` of a list, a number and an element."""
    return _rule(operation, ["L", None, "e"], "L", [(0, 2)])


def push_back(operation: Operation) -> Rule:
    """Return the rule of `TensorListPushBack` of a list and an element."""
    return _rule(operation, ["L", "e"], "L", [(0, 1)])


def pop_back(operation: Operation) -> Rule:
    """Return the rule of `TensorListPopBack`: the rest of the list, and its last element."""
    return _rule(operation, ["L"], "Le", [(0,)])


def length(operation: Operation) -> Rule:
    """Return the rule of `TensorListLength`, which is the same on all devices."""
    return _rule(operation, ["L"], [None])


def _rule(
    operation: Operation,
    inputs: Sequence[str | None],
    outputs: Sequence[str | None],
    linear: Iterable[tuple[int, ...]] = (),
) -> Rule:
    """Return a rule: "L" is a list, or all its elements, "e" an element, None something else."""
    rank = max(
        len(tensor.shape) - (form == "L")
        for form, tensor in zip(
            [*inputs, *outputs], [*operation.inputs, *operation.outputs], strict=True
        )
        if form is not None
    )
    element: list[Written] = [f"d{i}" for i in range(rank)]
    forms: dict[str | None, list[Written]] = {"L": [None, *element], "e": element, None: []}
    return make(
        operation,
        [forms[one] for one in inputs],
        [forms[one] for one in outputs],
        same=element if list(outputs) == [None] else (),
        linear=linear,
        saved_inputs=(),
    )
