# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gives functions that update weights a twin that updates a part of them.

As handle packing does, it stands between TensorFlow's functions and the runtime: a function keeps
its name and its body, and what is called is its twin. The plan is made when a function is first
called with the option on, from the graph that it was traced to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from tf_fuse._eager_calls import Call, extend
from tf_fuse.options import demands_bits
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.compiled import Compiler, Way, no_xla
from tf_fuse.shard_update.containers import watch_containers
from tf_fuse.shard_update.datasets import watch_datasets
from tf_fuse.shard_update.places import has_other_tasks
from tf_fuse.shard_update.program import ProgramMaker
from tf_fuse.shard_update.updates import Updates, using
from tf_fuse.shard_update.xla import XlaMaker

# The graphs of functions, by name; of a twin, the one of the function that it was made of.
_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
# Of twins, the shapes of their tensors.
_shapes: dict[str, Mapping[str, Shape | None]] = {}


def _remember(function: Any) -> None:
    name = function.name
    _graphs[name.decode() if isinstance(name, bytes) else name] = function.graph


def install(
    is_on: Callable[[Any], bool],
    compiles: Callable[[Any], bool],
    fuses: Callable[[Any], bool | None],
) -> None:
    """Extends TensorFlow's eager context, once per process.

    Args:
      is_on: whether updates are to be cut, given the context.
      compiles: whether they are to be compiled, given the context.
      fuses: whether the operations of each are to be one, given the context; None: of those
        functions that replicas run together or that have servers, if updates are to be cut.
    """
    from tensorflow.python.eager.polymorphic_function import transform

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
        for twins in ("_tf_fuse_updates", "_tf_fuse_compiler", "_tf_fuse_fuser"):
            if (keeper := getattr(context, twins, None)) is not None:
                keeper.forget(context, name)

    extend("_tf_fuse_shards_updates", call, forget)
    watch_datasets()
    watch_containers()
    if _remember not in transform.CONCRETE_FUNCTION_CALLBACKS:
        transform.CONCRETE_FUNCTION_CALLBACKS.append(_remember)


def updates_of(context: Any) -> Updates:
    """The twins of a context; made when first asked for."""
    updates = getattr(context, "_tf_fuse_updates", None)
    if updates is None:
        updates = context._tf_fuse_updates = Updates(_graphs, _shapes)
    return updates


def compiler_of(context: Any) -> Compiler:
    """The compiled twins of a context; made when first asked for."""
    return _twins_of(context, "_tf_fuse_compiler", Way("compiled", XlaMaker(), no_xla))


def fuser_of(context: Any) -> Compiler:
    """The twins of a context that have each update in one operation; made when first asked for."""

    def may_differ() -> bool:
        return has_other_tasks(context) and not demands_bits(context)

    maker = ProgramMaker(lambda: context.config, may_differ)
    way = Way("fused", maker, lambda context: "", has_servers=True, may_differ=may_differ)
    return _twins_of(context, "_tf_fuse_fuser", way)


def _twins_of(context: Any, attribute: str, way: Way) -> Compiler:
    twins = getattr(context, attribute, None)
    if twins is None:
        context.ensure_initialized()
        twins = Compiler(context, _graphs, _shapes, way)
        setattr(context, attribute, twins)
    return twins
