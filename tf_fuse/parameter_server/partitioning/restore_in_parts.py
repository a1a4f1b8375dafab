# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Restore a checkpoint of many bytes in parts, so that a server needs little memory besides.

TensorFlow reads all values of a server, and then assigns them: the server has its variables twice.
This module restores some variables after the others, and logs how far it is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_fuse import options
from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.variables import checkpoint_saver
from tf_fuse._tensorflow.variables.checkpoint_saver import Restored

_log = logging.getLogger("tf_fuse")
# What a server reads at a time, unless one variable has more.
PART_BYTES = 128 << 20
_is_on = options.reader("place_variables")


def install() -> None:
    """Extend TensorFlow's checkpoints, once per process."""
    if features.works(feature_names.RESTORE_IN_PARTS):
        checkpoint_saver.extend(_restore)


def _restore(stock: Callable[..., Any], saver: Any, file_prefix: Any, options: Any = None) -> Any:
    from tensorflow.python.eager import context

    if (
        not context.executing_eagerly()
        or not _is_on(context.context())
        or checkpoint_saver.has_own_savers(saver)
    ):
        return stock(saver, file_prefix, options)
    found = checkpoint_saver.tensors(saver)
    if not any("/job:ps/" in one.task for one in found):
        return stock(saver, file_prefix, options)
    sizes = _sizes(_text(file_prefix), found)
    parts = split(found, sizes, PART_BYTES)
    if len(parts) < 2:
        return stock(saver, file_prefix, options)
    made: dict[str, Any] = {}
    total, done = sum(sizes), 0
    for functions in parts:
        restored = stock(checkpoint_saver.part(saver, functions), file_prefix, options)
        made.update(restored or {})
        done += sum(
            size for one, size in zip(found, sizes, strict=True) if one.function in functions
        )
        _log.info("restored %d of %d MiB of %s", done >> 20, total >> 20, _text(file_prefix))
    return made


def _text(file_prefix: Any) -> str:
    value = file_prefix.numpy() if hasattr(file_prefix, "numpy") else file_prefix
    return value.decode() if isinstance(value, bytes) else str(value)


def _sizes(file_prefix: str, found: Sequence[Restored]) -> list[int]:
    """Return the bytes of tensors; 0 for what the checkpoint does not have."""
    from tensorflow.python.training import py_checkpoint_reader

    shapes = py_checkpoint_reader.NewCheckpointReader(file_prefix).get_variable_to_shape_map()
    return [_bytes(one, shapes) for one in found]


def _bytes(one: Restored, shapes: Mapping[str, Sequence[int]]) -> int:
    """Return the bytes of a tensor, or of a slice: "FULL SHAPE BEGIN,LENGTH:-:..." names it."""
    if one.key not in shapes:
        return 0
    sizes = list(shapes[one.key])
    for axis, text in enumerate(one.slice_spec.rpartition(" ")[2].split(":")):
        if "," in text:
            sizes[axis] = int(text.split(",")[1])
    return math.prod(sizes) * int(one.dtype.size or 1)


def split(found: Sequence[Restored], sizes: Sequence[int], limit: int) -> list[set[Any]]:
    """Divide what is restored into parts, so that no task reads more than a limit at a time.

    Args:
      found: the tensors; those of one function stay together.
      sizes: bytes of each.
      limit: bytes; a function alone may have more.

    Returns:
      The functions of each part, in their order.
    """
    tasks: dict[Any, dict[str, int]] = {}
    for one, size in zip(found, sizes, strict=True):
        of_function = tasks.setdefault(one.function, {})
        of_function[one.task] = of_function.get(one.task, 0) + size
    # (By tasks in turn: a part should have some of each task.)
    parts: list[tuple[set[Any], dict[str, int]]] = []
    first: dict[str, int] = {}
    for function, more in tasks.items():
        number = max((first.get(task, 0) for task in more), default=0)
        while number < len(parts) and not _fits(parts[number][1], more, limit):
            number += 1
        if number == len(parts):
            parts.append((set(), {}))
        functions, filled = parts[number]
        functions.add(function)
        for task, size in more.items():
            filled[task] = filled.get(task, 0) + size
            if size:
                first[task] = number
    return [functions for functions, _ in parts]


def _fits(filled: Mapping[str, int], more: Mapping[str, int], limit: int) -> bool:
    """Return whether each task can read more bytes: up to a limit, or what nothing is before."""
    sizes = [(filled.get(task, 0), size) for task, size in more.items()]
    return all(before == 0 or before + size <= limit for before, size in sizes)
