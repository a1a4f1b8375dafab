# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""All layouts of a tensor, and the cheapest way between any two, found without a search.

Written from the definitions alone: a layout is what each device holds, and the distances are those
of Floyd and Warshall's algorithm over all single steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tf_fuse.layout import Mesh, TensorLayout

# Larger than any sum of bytes here; exact in int64.
_FAR = 1 << 50
# Messages are counted below this, so that bytes come first.
_BYTE = 1 << 12


def layouts(mesh: Mesh, shape: Sequence[int], partial: bool = True) -> list[TensorLayout]:
    """All layouts of a tensor: each axis B, P or S(i), in all orders of axes of one dimension."""
    found = set()
    letters = [*range(len(shape)), "B", *(["P"] if partial else [])]
    for word in itertools.product(letters, repeat=len(mesh.axes)):
        sums = [axis for axis, letter in zip(mesh.axes, word, strict=True) if letter == "P"]
        per_dim = [
            [axis for axis, letter in zip(mesh.axes, word, strict=True) if letter == i]
            for i in range(len(shape))
        ]
        for splits in itertools.product(*(itertools.permutations(axes) for axes in per_dim)):
            counts = [math.prod(map(mesh.size_of, axes)) for axes in splits]
            if all(size % count == 0 for size, count in zip(shape, counts, strict=True)):
                found.add(TensorLayout(mesh, shape, splits, sums))
    return sorted(found, key=str)


def distances(nodes: Sequence[TensorLayout], joint: bool) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and messages of the cheapest sequence of steps between any two layouts.

    Args:
      nodes: all layouts of one tensor.
      joint: whether all-to-all and all-reduce may take several axes as one group.

    Returns:
      Elements that all devices together receive, and messages of a device: square matrices.
    """
    count = len(nodes)
    best = np.full((count, count), _FAR, np.int64)
    at = {node: i for i, node in enumerate(nodes)}
    for node, i in at.items():
        best[i, i] = 0
        for after, elements, messages in _steps(node, joint):
            if after in at:
                best[i, at[after]] = min(best[i, at[after]], elements * _BYTE + messages)
    for before, after in itertools.permutations(nodes, 2):
        members = _exchanged(before, after, joint)
        if members:
            held = before.bytes_per_device(1) * before.mesh.size
            cost = held // members * (members - 1) * _BYTE + members - 1
            best[at[before], at[after]] = min(best[at[before], at[after]], cost)
    for k in range(count):
        np.minimum(best, best[:, k : k + 1] + best[k : k + 1, :], out=best)
    return best // _BYTE, best % _BYTE


def _exchanged(before: TensorLayout, after: TensorLayout, joint: bool) -> int:
    """The size of the groups in which one all-to-all leads from a layout to another; 0 if none."""
    if before.partial != after.partial or before.replicated != after.replicated:
        return 0
    moved: list[str] = []
    for old, new in zip(before.splits, after.splits, strict=True):
        shorter = min(len(old), len(new))
        if old[:shorter] != new[:shorter]:
            return 0
        moved += old[shorter:]
    return math.prod(map(before.mesh.size_of, moved)) if joint or len(moved) == 1 else 0


def _steps(node: TensorLayout, joint: bool) -> Iterator[tuple[TensorLayout, int, int]]:
    """Everything that one collective, or none, makes of a layout."""
    mesh, held = node.mesh, node.bytes_per_device(1) * node.mesh.size
    size = mesh.size_of

    def layout(changed: dict[int, tuple[str, ...]], sums: set[str]) -> TensorLayout | None:
        splits = [changed.get(i, axes) for i, axes in enumerate(node.splits)]
        counts = [math.prod(map(size, axes)) for axes in splits]
        if any(one % slices for one, slices in zip(node.shape, counts, strict=True)):
            return None
        return TensorLayout(mesh, node.shape, splits, sums)

    sums = set(node.partial)
    raw: list[tuple[TensorLayout | None, int, int]] = []
    for axis in node.replicated:
        raw.append((layout({}, sums | {axis}), 0, 0))
        raw += [(layout({i: (*node.splits[i], axis)}, sums), 0, 0) for i in range(node.rank)]
    for i, axes in enumerate(node.splits):
        if axes:
            p = size(axes[-1])
            raw.append((layout({i: axes[:-1]}, sums), held * (p - 1), p - 1))
            raw.append((layout({i: axes[:-1]}, sums | {axes[-1]}), 0, 0))
    for axis in sums:
        p = size(axis)
        raw += [
            (layout({i: (*node.splits[i], axis)}, sums - {axis}), held // p * (p - 1), p - 1)
            for i in range(node.rank)
        ]
    for m in range(1, len(sums) + 1 if joint else 2):
        for group in itertools.combinations(sorted(sums), m):
            p = math.prod(map(size, group))
            raw.append((layout({}, sums - set(group)), 2 * held // p * (p - 1), 2 * (p - 1)))
    yield from ((after, cost, messages) for after, cost, messages in raw if after is not None)
