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
    is_enough = captured.keys() <= watched.keys() and not pattern and not keras_variable.is_loaded()
    known = {} if is_enough or not captured else _by_handle()
    for handle, argument in captured.items():
        path, trainable, variable = known.get(handle, ("", None, watched.get(handle)))
        if variable is None or not (variable.trainable if trainable is None else trainable):
            continue
        if variable.dtype.base_dtype == dtypes.float32:
            found = re.search(pattern, path or variable.name.removesuffix(":0"))
            # What a gradient loses is of this function: another one's may mean something else.
            text = f"bfloat16 {_key_of(variable)}/{graph.name}" if found else "float32"
            functions.set_text_attribute(argument, ATTRIBUTE, text)


def _key_of(variable: Any) -> str:
    number = variable.__dict__.get(_NUMBER)
    if number is None:
        number = variable.__dict__.setdefault(_NUMBER, next(_numbers))
    return f"{_PROCESS}/{number}"


def _by_handle() -> dict[int, tuple[str, bool | None, Any]]:
    """Return all variables by the `id` of their handle, with what Keras 3 knows of them.

    That is the path, or "", and whether they are trained, or None. A program that passes a handle
    to an operation itself does not name the variable; and in Keras 3 the variables of all layers
    have the same few names, and those of a layer that was frozen after it was built stay trainable.
    """
    from tensorflow.python.ops import resource_variable_ops

    objects = gc.get_objects()
    of_keras = {}
    for path, trainable, value in keras_variable.known_of(objects):
        for part in getattr(value, "variables", [value]):
            of_keras[id(getattr(part, "handle", None))] = (path, trainable)
    found = {}
    for one in keras_variable.instances(objects, resource_variable_ops.BaseResourceVariable):
        handle = id(resource_variable.own_handle(one))
        found[handle] = (*of_keras.get(handle, ("", None)), one)
    return found
