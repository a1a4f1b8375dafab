# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of tables and of their slots, by which a restored job is compared with the one saved."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

SLOTS = ("momentum", "velocity")


def pieces_of(variable: Any) -> list[tf.Variable]:
    """Return TensorFlow's variables of one of Keras: its pieces, in order, or itself."""
    value = variable.value
    return list(getattr(value, "variables", [value]))


def chosen(rows: int, count: int) -> np.ndarray:
    """Return numbers of rows in order: the first and the last one, and others between."""
    return np.unique(np.linspace(0, rows - 1, min(rows, count)).astype(np.int64))


def read(parts: Sequence[tf.Variable], rows: np.ndarray) -> np.ndarray:
    """Return rows of a variable that lies in pieces; each server gathers its own.

    Args:
      parts: in order.
      rows: their numbers in the whole, in order.
    """
    found, first = [], 0
    for part in parts:
        size = int(part.shape[0])
        mine = rows[(rows >= first) & (rows < first + size)] - first
        if len(mine):
            found.append(part.sparse_read(tf.constant(mine)).numpy())
        first += size
    return np.concatenate(found)


def digests(model: Any, optimizer: Any, count: int) -> dict[str, Any]:
    """Return a digest of sampled rows of each table and of each of its slots.

    Args:
      model: of Keras.
      optimizer: its Adam.
      count: how many rows of each table.

    Returns:
      {"digests": {NAME: digest}, "changed": how many rows have a slot that is not zero}.
    """
    weights = [(one.path, pieces_of(one)) for one in model.trainable_variables]
    slots = {
        kind: iter(
            piece
            for one in optimizer.variables
            if one.path.endswith(f"_{kind}")
            for piece in pieces_of(one)
        )
        for kind in SLOTS
    }
    found: dict[str, str] = {}
    changed = 0
    for path, parts in weights:
        rows = chosen(sum(int(one.shape[0]) for one in parts), count)
        states = {"": parts} | {kind: [next(slots[kind]) for _ in parts] for kind in SLOTS}
        for kind, variables in states.items():
            values = read(variables, rows)
            found[f"{path} {kind}".rstrip()] = hashlib.sha256(values.tobytes()).hexdigest()[:16]
            changed += int(np.any(values.reshape(len(rows), -1), axis=1).sum()) if kind else 0
    return {"digests": found, "changed": changed}
