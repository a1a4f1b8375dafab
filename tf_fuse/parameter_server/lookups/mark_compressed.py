# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mark the variables whose rows and gradients travel as bfloat16.

Only the process that traces a function knows the names of its variables, and only the one that cuts
the graph knows what travels. So the arguments of a traced function that are handles of trained
variables get an attribute; cc/passes/compress reads it when devices are known.
"""

from __future__ import annotations

import gc
import itertools
import re
import uuid
from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow.graphs import functions, rewrite_after_trace
from tf_fuse._tensorflow.keras import variable as keras_variable
from tf_fuse._tensorflow.variables import resource_variable

#: The attribute of an argument, and of the operation that unpacks arguments.
ATTRIBUTE = "_tf_fuse_compress"
_NUMBER = "_tf_fuse_compress_number"
# Numbers are of this process; a worker may outlive it.
_PROCESS = uuid.uuid4().hex
_numbers = itertools.count()


def install(is_on: Callable[[Any], bool], pattern: Callable[[Any], str]) -> None:
    """Mark the variables of functions that are traced from now on, once per process.

    Args:
      is_on: whether a context compresses.
      pattern: the regular expression of a context that finds the names of variables to compress.
    """
    from tensorflow.python.eager import context as context_module

    def mark(graph: Any) -> None:
        context = context_module.context()
        if is_on(context):
            _mark(graph, pattern(context))

    rewrite_after_trace.call_with_each("compress", mark)


def _mark(graph: Any, pattern: str) -> None:
    from tensorflow.python.framework import dtypes, ops

    captured = {
        id(outside): inside.op
        for outside, inside in graph.captures
        if isinstance(outside, ops.EagerTensor) and outside.dtype == dtypes.resource
    }
    watched = {id(resource_variable.own_handle(one)): one for one in graph.variables}
    known = {} if captured.keys() <= watched.keys() and not pattern else _by_handle()
    for handle, argument in captured.items():
        path, variable = known.get(handle, ("", watched.get(handle)))
        if variable is None or not variable.trainable:
            continue
        if variable.dtype.base_dtype == dtypes.float32:
            found = re.search(pattern, path or variable.name.removesuffix(":0"))
            text = f"bfloat16 {_key_of(variable)}" if found else "float32"
            functions.set_text_attribute(argument, ATTRIBUTE, text)


def _key_of(variable: Any) -> str:
    number = variable.__dict__.get(_NUMBER)
    if number is None:
        number = variable.__dict__.setdefault(_NUMBER, next(_numbers))
    return f"{_PROCESS}/{number}"


def _by_handle() -> dict[int, tuple[str, Any]]:
    """Return all variables by the `id` of their handle, each with its path in Keras 3 or "".

    A program that passes a handle to an operation itself does not name the variable; and in Keras 3
    the variables of all layers have the same few names.
    """
    from tensorflow.python.ops import resource_variable_ops

    objects = gc.get_objects()
    paths = {}
    for path, value in keras_variable.paths_of(objects):
        for part in getattr(value, "variables", [value]):
            paths[id(getattr(part, "handle", None))] = path
    found = {}
    for one in objects:
        # (`isinstance` would ask proxies for their class.)
        if issubclass(type(one), resource_variable_ops.BaseResourceVariable):
            handle = id(resource_variable.own_handle(one))
            found[handle] = (paths.get(handle, ""), one)
    return found
