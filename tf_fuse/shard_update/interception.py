# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Call, in place of a function that updates weights, one that updates this replica's shards.

As handle packing does, this stands between TensorFlow's functions and the runtime: a function keeps
its name and its body, and the rewritten function is called in its place. The plan is made when a
function is first called with the option on, from the graph that it was traced to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from tf_fuse._tensorflow.eager.function_calls import Call, extend
from tf_fuse.function_graph.builder import Shape
from tf_fuse.fuse_update.analysis.devices import has_other_tasks
from tf_fuse.fuse_update.backend import Backend, no_xla
from tf_fuse.fuse_update.encode.elementwise import ElementwiseEncoder
from tf_fuse.fuse_update.encode.xla import XlaEncoder
from tf_fuse.fuse_update.function_cache import UpdateFuser
from tf_fuse.options import graph_options, is_on
from tf_fuse.shard_update.function_cache import FunctionCache, using
from tf_fuse.shard_update.traced_functions import graphs as _graphs

# Of rewritten functions, the shapes of their tensors.
_shapes: dict[str, Mapping[str, Shape | None]] = {}


def install(
    is_on: Callable[[Any], bool],
    compiles: Callable[[Any], bool],
    fuses: Callable[[Any], bool | None],
) -> None:
    """Extend TensorFlow's eager context, once per process.

    Args:
      is_on: whether updates are to be sharded, given the context.
      compiles: whether they are to be compiled, given the context.
      fuses: whether the operations of each are to be one, given the context; None: of those
        functions that replicas run together or that have servers, if updates are to be sharded.
    """

    def is_fused(context: Any, name: bytes) -> bool:
        wanted = fuses(context)
        if wanted is None:
            is_shared = has_other_tasks(context) or updates_of(context).has_looked_at(name)
            return is_on(context) and is_shared
        return wanted

    def call(stock: Call, context: Any, name: Any, inputs: Any, num_outputs: int) -> Any:
        def run(context: Any, name: bytes, inputs: Any, num_outputs: int) -> Any:
            if compiles(context):
                compiler = compiler_of(context)
            elif is_fused(context, name):
                compiler = fuser_of(context)
            else:
                return stock(context, name, inputs, num_outputs)
            return compiler.call(context, stock, name, inputs, num_outputs)

        key = name if isinstance(name, bytes) else name.encode()
        if not is_on(context):
            with using(context, inputs, name):
                return run(context, key, inputs, num_outputs)
        return updates_of(context).call(context, run, key, inputs, num_outputs)

    def forget(context: Any, name: bytes) -> None:
        _shapes.pop(name.decode(), None)
        for rewritten_functions in ("_tf_fuse_updates", "_tf_fuse_compiler", "_tf_fuse_fuser"):
            if (keeper := getattr(context, rewritten_functions, None)) is not None:
                keeper.forget(context, name)

    extend("weight updates", call, forget)


def updates_of(context: Any) -> FunctionCache:
    """Return the rewritten functions of a context; made when first asked for."""
    updates = getattr(context, "_tf_fuse_updates", None)
    if updates is None:
        updates = context._tf_fuse_updates = FunctionCache(_graphs, _shapes)
    return updates


def compiler_of(context: Any) -> UpdateFuser:
    """Return the compiled rewritten functions of a context; made when first asked for."""
    return _keeper_of(context, "_tf_fuse_compiler", Backend("compiled", XlaEncoder(), no_xla))


def fuser_of(context: Any) -> UpdateFuser:
    """Return a context's functions with fused updates; make the record at the first call."""

    def may_differ() -> bool:
        return has_other_tasks(context) and not is_on(context, "shard_weight_update_exact")

    def variant() -> Hashable:
        return graph_options(context), may_differ()

    maker = ElementwiseEncoder(lambda: graph_options(context), may_differ)
    backend = Backend("fused", maker, lambda context: "", True, may_differ, variant)
    return _keeper_of(context, "_tf_fuse_fuser", backend)


def _keeper_of(context: Any, attribute: str, backend: Backend) -> UpdateFuser:
    rewritten_functions = getattr(context, attribute, None)
    if rewritten_functions is None:
        context.ensure_initialized()
        rewritten_functions = UpdateFuser(context, _graphs, _shapes, backend)
        setattr(context, attribute, rewritten_functions)
    return rewritten_functions
