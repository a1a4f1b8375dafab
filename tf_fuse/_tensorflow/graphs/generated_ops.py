# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `gen_array_ops.gather_v2` and `gen_math_ops.mat_mul`, which build graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Exists, Member, Takes

_OPERATION = "tensorflow.python.framework.ops:Operation"
_GATHER = Member(
    "tensorflow.python.ops.gen_array_ops",
    "gather_v2",
    Takes("params", "indices", "axis", "batch_dims", "name"),
    "Rows of a variable on a server are gathered there, in place of reading all of it.",
    (feature_names.GATHERS,),
    AT_FIRST_USE,
)
_MAT_MUL = Member(
    "tensorflow.python.ops.gen_math_ops",
    "mat_mul",
    Takes("a", "b", "transpose_a", "transpose_b", "grad_a", "grad_b", "name"),
    "Products with a variable in pieces are taken piece by piece.",
    (feature_names.MATMULS,),
    AT_FIRST_USE,
)
MEMBERS = (
    _GATHER,
    _MAT_MUL,
    Member(
        _OPERATION,
        "_control_outputs",
        Exists(),
        "to keep writes of a variable after the gather",
        (feature_names.GATHERS,),
    ),
    Member(
        _OPERATION,
        "_add_control_input",
        Exists(),
        "to keep writes of a variable after the gather",
        (feature_names.GATHERS,),
    ),
    Member(
        _OPERATION,
        "_remove_all_control_inputs",
        Exists(),
        "to leave out a read that nothing needs: it copies the variable",
        (feature_names.GATHERS,),
    ),
)


def watch_gathers(is_on: Callable[[Any], bool], see: Callable[[Any], None]) -> None:
    """Extend TensorFlow's gather in graphs, once per process.

    Args:
      is_on: whether to call `see`, given the eager context.
      see: gets the operation of each gather without batch dimensions.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.ops import gen_array_ops

    if monkey_patch.is_replaced(_GATHER):
        return
    stock = gen_array_ops.gather_v2

    def gather_v2(
        params: Any, indices: Any, axis: Any, batch_dims: int = 0, name: Any = None
    ) -> Any:
        rows = stock(params, indices, axis, batch_dims=batch_dims, name=name)
        if not context.executing_eagerly() and batch_dims == 0 and is_on(context.context()):
            see(rows.op)
        return rows

    gather_v2.__doc__ = stock.__doc__
    monkey_patch.replace(_GATHER, gather_v2)


def watch_products(
    is_on: Callable[[Any], bool], see: Callable[[Callable[..., Any], Any, Any, Any, Any], None]
) -> None:
    """Extend TensorFlow's matrix product in graphs, once per process.

    Args:
      is_on: whether to call `see`, given the eager context.
      see: gets the stock function, the operation of each product, `transpose_a`, `transpose_b` and
        `grad_b`.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.ops import gen_math_ops

    if monkey_patch.is_replaced(_MAT_MUL):
        return
    stock = gen_math_ops.mat_mul

    def mat_mul(
        a: Any, b: Any, transpose_a: Any = False, transpose_b: Any = False, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        product = stock(a, b, transpose_a, transpose_b, *args, **kwargs)
        if not context.executing_eagerly() and not args and is_on(context.context()):
            see(stock, product.op, transpose_a, transpose_b, kwargs.get("grad_b"))
        return product

    mat_mul.__doc__ = stock.__doc__
    monkey_patch.replace(_MAT_MUL, mat_mul)


def write_after(operation: Any, gather: Any, writes: Callable[[Any], bool]) -> None:
    """Make what writes after an operation wait for a gather, too: in its function, and after it.

    Args:
      operation: reads a variable.
      gather: reads it in its place.
      writes: whether an operation that waits for the read writes the variable.
    """
    for writer in operation._control_outputs:
        if writes(writer):
            writer._add_control_input(gather)
    # Where TensorFlow inlines a call, what comes after it waits for the control outputs alone.
    if any(one is operation for one in operation.graph.control_outputs):
        operation.graph.control_outputs.append(gather)


def leave_out(reads: Sequence[Any]) -> None:
    """Let no operation wait for reads whose values nobody needs, so that they do not run.

    A variable from which rows are gathered is copied when it is read: a table of gigabytes. What
    waits for such a read waits for what the read waits for.

    Args:
      reads: of variables, all in one graph; those that something needs stay.
    """
    graph = reads[0].graph
    needed = _results(graph) - {id(one) for one in reads}
    left_out = dict.fromkeys(one for one in reads if not _leads_to(one, needed))

    def without(waits: Sequence[Any]) -> dict[Any, None]:
        kept: dict[Any, None] = {}
        for one in waits:
            kept |= without(one.control_inputs) if one in left_out else {one: None}
        return kept

    # (Each user once: the end of a function waits for thousands of operations.)
    for user in {user: None for one in left_out for user in one._control_outputs}:
        others = without(user.control_inputs)
        user._remove_all_control_inputs()
        for one in others:
            user._add_control_input(one)
    graph.control_outputs[:] = without(graph.control_outputs)


def is_needed(op: Any) -> bool:
    """Return whether a function that has been traced runs an operation without a state."""
    return bool(op._control_outputs) or _leads_to(op, _results(op.graph))


def _results(graph: Any) -> set[int]:
    """Return the results and control outputs of a function, by identity."""
    return {id(one) for one in (*graph.outputs, *graph.control_outputs)}


def _leads_to(op: Any, needed: set[int]) -> bool:
    """Return whether an operation's results lead to something that a function needs.

    Args:
      op: the operation.
      needed: by identity, results and control outputs of the function.
    """
    seen, left = {op}, [op]
    while left:
        for tensor in left.pop().outputs:
            if id(tensor) in needed:
                return True
            for user in tensor.consumers():
                if id(user) in needed or user.op_def.is_stateful or user._control_outputs:
                    return True
                if user not in seen:
                    seen.add(user)
                    left.append(user)
    return False
