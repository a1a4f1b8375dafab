# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of reductions over dimensions."""

from __future__ import annotations

from collections.abc import Callable

from tf_fuse.layout.operators.rule import Inner, Rule, Work, channel_of, dimension_of, expect, make
from tf_fuse.layout.types.operation import Operation


def reduction(how: str, linear: bool = False) -> Callable[[Operation], Rule]:
    """Return the rule of a reduction, with `axes` and `keep_dims`.

    Over a dimension that is split, a sum is partial; others are reduced among devices at once.

    Args:
      how: "sum", "max", "min" or "prod".
      linear: whether the operation of partial inputs is partial.
    """

    def rule(operation: Operation) -> Rule:
        expect(operation, [None], [None])
        shape = operation.inputs[0].shape
        axes = operation.attribute("axes", tuple(range(len(shape))))
        axes = axes if isinstance(axes, tuple) else (axes,)
        reduced = {dimension_of(operation, one, len(shape)) for one in axes}
        names = [f"d{i}" for i in range(len(shape))]
        kept = [name for i, name in enumerate(names) if i not in reduced]
        output = (
            [None if i in reduced else name for i, name in enumerate(names)]
            if operation.attribute("keep_dims", False)
            else kept
        )
        gone = [names[i] for i in sorted(reduced)]
        # Rounded means of slices do not add up to the mean.
        rounded = operation.kind == "Mean" and not operation.inputs[0].is_real
        return make(
            operation,
            [names],
            [output],
            fixed=gone if rounded else (),
            sums=gone if how == "sum" else (),
            linear=[(0,)] if linear and not rounded else (),
            inner=[] if how == "sum" else [Inner(one, how, Work(1, tuple(kept))) for one in gone],
            work=[Work(1, tuple(names))],
            saved_inputs=() if linear else None,
            saved_outputs=() if how == "sum" else (0,),
        )

    return rule


def bias_add_grad(operation: Operation) -> Rule:
    """Return the rule of `BiasAddGrad`: the sum over all dimensions but the bias's one."""
    expect(operation, [None], [1])
    names = [f"d{i}" for i in range(len(operation.inputs[0].shape))]
    kept = names[channel_of(operation, len(names))]
    return make(
        operation,
        [names],
        [[kept]],
        sums=set(names) - {kept},
        linear=[(0,)],
        work=[Work(1, tuple(names))],
        saved_inputs=(),
    )
