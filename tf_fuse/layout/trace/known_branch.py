# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan a conditional by the one branch whose shapes are known, with a check that it is the one.

Keras 3 divides the gradient of a table's rows by a conditional: if the divisor has a zero or NaN
anywhere, the quotient has rows for these, too, and nobody knows how many.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tf_fuse._tensorflow.graphs.functions import function_of, graph_of
from tf_fuse.layout.trace.records import dims_of, is_whole

BRANCHES = ("then_branch", "else_branch")


class KnownBranch(NamedTuple):
    """A branch of a conditional.

    Attributes:
      graph: of it.
      number: 0 if it runs where the conditional's predicate is true, or 1.
    """

    graph: Any
    number: int


def body_of(operation: Any, attribute: str) -> Any:
    """Return the graph of a function that a loop or conditional calls."""
    return graph_of(function_of(operation.graph, operation.get_attr(attribute).name))


def known_branch(conditional: Any) -> KnownBranch | None:
    """Return the one branch of known shapes, if the conditional's own shapes are not known."""
    if _are_known(conditional.outputs):
        return None
    graphs = [body_of(conditional, one) for one in BRANCHES]
    found = [KnownBranch(one, i) for i, one in enumerate(graphs) if _are_known(one.outputs)]
    return found[0] if len(found) == 1 else None


def negation_and_check(name: str) -> tuple[Any, Any, str]:
    """Return an operation that negates a predicate, one that fails if it is false, and its text."""
    text = (
        f"the conditional {name!r} takes the branch whose shapes are not known before the function "
        "runs, and a plan has only the other one; if an optimizer divides a table's gradient by "
        "zeros or NaNs here, give it tf.convert_to_tensor(gradient)"
    )
    with tf.Graph().as_default():
        predicate = tf.compat.v1.placeholder(tf.bool, [])
        negated = tf.raw_ops.LogicalNot(x=predicate)
        check = tf.raw_ops.Assert(condition=negated, data=[tf.constant(text)])
    return negated.op, check, text


def _are_known(tensors: Any) -> bool:
    return all(is_whole(dims_of(one.shape)) for one in tensors if one.dtype != tf.resource)
