# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of random numbers.

The numbers of a draw depend on key, counter and place alone, so each device can draw its part of
the same numbers. Stateful operations become stateless ones, seeded by the number of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tf_fuse.layout.operators.rule import Rule, Work, Written, expect, make
from tf_fuse.layout.types.operation import Operation

# By stateful kind, the stateless operation that draws in its place.
STATELESS: Final = {
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
}
FULL: Final = "StatelessRandomUniformFullIntV2"
DRAWS: Final = (*STATELESS, *STATELESS.values(), FULL)
# `tf.random.Algorithm.THREEFRY`, whose parts cannot be drawn alone.
_THREEFRY: Final = 2


def draw(flops: int) -> Callable[[Operation], Rule]:
    """Return the rule of a draw: every dimension of the output can be split.

    A device draws the rows of its slice, whole, and keeps its part of them.

    Args:
      flops: for each number.
    """

    def rule(operation: Operation) -> Rule:
        expect(operation, None, [None])
        shape = operation.outputs[0].shape
        names = [f"d{i}" for i in range(len(shape))]
        first = outer_dimension(shape)
        rows = tuple(names[first : first + 1])
        inputs: list[list[Written]] = [[None] * len(one.shape) for one in operation.inputs]
        return make(
            operation,
            inputs,
            [names],
            fixed=names if operation.attribute("alg") == _THREEFRY else (),
            extra=[(name, 4) for name in names],
            work=[Work(flops * math.prod(shape[first + 1 :]), rows)],
            backward_work=(),
            constants=range(len(inputs)),
            saved_inputs=(),
        )

    return rule


def seed(operation: Operation) -> Rule:
    """Return the rule of `StatelessRandomGetKeyCounter`: all devices have key and counter."""
    expect(operation, [1], [1, 1])
    return make(operation, [[None]], [[None], [None]], constants=[0], saved_inputs=())


def outer_dimension(shape: tuple[int, ...]) -> int:
    """Return the first dimension with several elements; a slice of it lies in one piece."""
    return next((i for i, size in enumerate(shape) if size > 1), 0)
