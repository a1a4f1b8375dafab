# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of elementwise operations, with broadcasting, and of optimizers' updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tf_fuse.layout.operators.contraction import broadcast, check_broadcast
from tf_fuse.layout.operators.rule import Rule, Work, channel_of, expect, make
from tf_fuse.layout.types.errors import raise_if
from tf_fuse.layout.types.operation import Operation


def elementwise(
    linear: Iterable[tuple[int, ...]] = (),
    flops: int = 1,
    constants: Iterable[int] = (),
    saved_inputs: Iterable[int] | None = None,
    saved_outputs: Iterable[int] = (),
    copies: bool = False,
    view: bool = False,
) -> Callable[[Operation], Rule]:
    """Return the rule of an operation on elements: every dimension can be split, for nothing.

    Args:
      linear: sets of inputs in which it is linear.
      flops: for each element.
      constants: inputs that have no gradient.
      saved_inputs: those that its gradient needs; all, if None.
      saved_outputs: the same of the outputs.
      copies: whether the output is the input, in the same place.
      view: whether nothing is read or written.
    """

    def rule(operation: Operation) -> Rule:
        expect(operation, None, [None])
        shape = operation.outputs[0].shape
        for i, one in enumerate(operation.inputs):
            check_broadcast(operation, i, one.shape, shape)
        names = [f"d{i}" for i in range(len(shape))]
        used = [i for i in constants if i < len(operation.inputs)]
        return make(
            operation,
            [broadcast(one.shape, shape, "d") for one in operation.inputs],
            [names],
            # The number of elements of a list.
            fixed=names[:1] if operation.outputs[0].is_list else (),
            linear=linear,
            work=[Work(flops, tuple(names))],
            constants=used,
            saved_inputs=saved_inputs,
            saved_outputs=saved_outputs,
            aliases=[(0, 0)] if copies else (),
            copies=copies,
            view=copies or view,
        )

    return rule


def quotient(operation: Operation) -> Rule:
    """Return the rule of a division; that of whole numbers rounds, so it is not linear."""
    linear = [(0,)] if operation.inputs[0].is_real else []
    return elementwise(linear)(operation)


def add_n(operation: Operation) -> Rule:
    """Return the rule of `AddN`: the sum of tensors of one shape; partial if all are."""
    everything = tuple(range(len(operation.inputs)))
    return elementwise([everything], len(everything) - 1, saved_inputs=())(operation)


def bias_add(operation: Operation) -> Rule:
    """Return the rule of `BiasAdd`; the bias is along the dimension of `data_format`."""
    expect(operation, [None, 1], [None])
    names = [f"d{i}" for i in range(len(operation.outputs[0].shape))]
    return make(
        operation,
        [names, [names[channel_of(operation, len(names))]]],
        [names],
        linear=[(0, 1)],
        work=[Work(1, tuple(names))],
        backward_work=[Work(1, tuple(names))],
        saved_inputs=(),
    )


def update(states: int, flops: int) -> Callable[[Operation], Rule]:
    """Return the rule of an optimizer's update of a variable.

    All tensors of the variable's shape are split alike, and the scalars are the same everywhere. A
    gradient that is partial has to be reduced before.

    Args:
      states: how many of the first inputs, the variable among them, are written. These are the
        outputs, in the same place.
      flops: for each element.
    """

    def rule(operation: Operation) -> Rule:
        expect(operation, None, [None] * states)
        shape = operation.outputs[0].shape
        names = [f"d{i}" for i in range(len(shape))]
        raise_if([
            f"{operation}: input {i} has shape {list(one.shape)}, expected the variable's, "
            f"{list(shape)}, or a scalar"
            for i, one in enumerate(operation.inputs)
            if one.shape not in (shape, ())
        ])  # fmt: skip
        return make(
            operation,
            [names if one.shape else [] for one in operation.inputs],
            [names] * states,
            work=[Work(flops, tuple(names))],
            backward_work=(),
            constants=range(len(operation.inputs)),
            loose=range(states),
            saved_inputs=(),
            aliases=[(i, i) for i in range(states)],
        )

    return rule


def source(operation: Operation) -> Rule:
    """Return the rule of operations without inputs: variables, constants and fed tensors."""
    expect(operation, [])
    names = [[f"{t}.{i}" for i in range(len(one.shape))] for t, one in enumerate(operation.outputs)]
    return make(
        operation,
        [],
        names if len(names) == 1 else [[None] * len(one) for one in names],
        work=(),
    )
