# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""All layouts of a tensor, and the cheapest way between any two, found without a search.

Written from the definitions alone: a layout is what each device holds, and the distances are those
of Floyd and Warshall's algorithm over all single steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tf_fuse.layout import Mesh, TensorLayout

# Larger than any price here.
_FAR = 1 << 50
# More than any number of messages here.
_BYTE = 1 << 12


def bytes_first(axes: Sequence[str], elements: int, messages: int) -> int:
    """Return the price where bytes count first, and messages second."""
    return elements * _BYTE + messages


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


def distances(
    nodes: Sequence[TensorLayout],
    joint: bool,
    price: Callable[[Sequence[str], int, int], int] = bytes_first,
    any_partial: bool = False,
    exchange_price: Callable[[Sequence[str], int, int], int] | None = None,
    permute_price: Callable[[Sequence[str], int, int], int] | None = None,
) -> np.ndarray:
    """Return the price of the cheapest sequence of steps between any two layouts.

    Args:
      nodes: all layouts of one tensor.
      joint: whether all-to-all and all-reduce may take several axes as one group, and axes may
        change places.
      price: of a step in groups over some axes, in which all devices together receive so many
        elements, and each one so many messages.
      any_partial: whether a tensor may become partial over any axis on the way; else only over
        those over which it is at the end.
      exchange_price: of an all-to-all, if it is another one.
      permute_price: of a step in which devices change places, if it is another one.

    Returns:
      A square matrix.
    """
    prices = price, exchange_price or price, permute_price or price
    if any_partial:
        return _distances(nodes, joint, prices, nodes[0].mesh.axes if nodes else ())
    found = np.full((len(nodes), len(nodes)), _FAR, np.int64)
    for partial in {one.partial for one in nodes}:
        ends = [i for i, one in enumerate(nodes) if one.partial == partial]
        found[:, ends] = _distances(nodes, joint, prices, partial)[:, ends]
    return found


def _distances(
    nodes: Sequence[TensorLayout],
    joint: bool,
    prices: tuple[Callable[[Sequence[str], int, int], int], ...],
    partial: Sequence[str],
) -> np.ndarray:
    """Return the same, where tensors may become partial over some axes."""
    price, exchange_price, permute_price = prices
    best = np.full((len(nodes), len(nodes)), _FAR, np.int64)
    at = {node: i for i, node in enumerate(nodes)}
    for node, i in at.items():
        best[i, i] = 0
        for after, *what in _steps(node, joint, partial):
            if after in at:
                best[i, at[after]] = min(best[i, at[after]], price(*what))
    for before, after in itertools.permutations(nodes, 2):
        moved = _exchanged(before, after, joint)
        if moved:
            held = before.bytes_per_device(1) * before.mesh.size
            p = math.prod(map(before.mesh.size_of, moved))
            what = exchange_price(moved, held // p * (p - 1), p - 1)
            best[at[before], at[after]] = min(best[at[before], at[after]], what)
        if joint and _is_permuted(before, after):
            devices = [
                one
                for one in range(before.mesh.size)
                if before.slice_of(one) != after.slice_of(one)
            ]
            elements = before.bytes_per_device(1) * len(devices)
            what = permute_price(before.mesh.axes, elements, 1)
            best[at[before], at[after]] = min(best[at[before], at[after]], what)
    for k in range(len(nodes)):
        np.minimum(best, best[:, k : k + 1] + best[k : k + 1, :], out=best)
    return best


def _exchanged(before: TensorLayout, after: TensorLayout, joint: bool) -> list[str]:
    """Return the axes over which one all-to-all leads from one layout to the other, if one does."""
    if before.partial != after.partial or before.replicated != after.replicated:
        return []
    moved: list[str] = []
    for old, new in zip(before.splits, after.splits, strict=True):
        shorter = min(len(old), len(new))
        if old[:shorter] != new[:shorter]:
            return []
        moved += old[shorter:]
    return moved if joint or len(moved) == 1 else []


def _is_permuted(before: TensorLayout, after: TensorLayout) -> bool:
    """Whether all slices are as large, and cut alike, in another order of devices."""
    size = before.mesh.size_of
    return before.partial == after.partial and all(
        list(map(size, old)) == list(map(size, new))
        for old, new in zip(before.splits, after.splits, strict=True)
    )


def _steps(
    node: TensorLayout, joint: bool, partial: Sequence[str]
) -> Iterator[tuple[TensorLayout, Sequence[str], int, int]]:
    """Everything that one collective but an all-to-all, or none, makes of a layout."""
    size, held = node.mesh.size_of, node.bytes_per_device(1) * node.mesh.size
    sums = set(node.partial)
    # What changes, the axes of the groups, elements and messages.
    raw: list[tuple[dict[int, tuple[str, ...]], set[str], Sequence[str], int, int]] = []
    for axis in node.replicated:
        if axis in partial:
            raw.append(({}, sums | {axis}, [axis], 0, 0))
        raw += [({i: (*node.splits[i], axis)}, sums, [axis], 0, 0) for i in range(node.rank)]
    for i, axes in enumerate(node.splits):
        if axes:
            p = size(axes[-1])
            raw.append(({i: axes[:-1]}, sums, axes[-1:], held * (p - 1), p - 1))
            if axes[-1] in partial:
                raw.append(({i: axes[:-1]}, sums | {axes[-1]}, axes[-1:], 0, 0))
    for axis in sums:
        p = size(axis)
        raw += [
            ({i: (*node.splits[i], axis)}, sums - {axis}, [axis], held // p * (p - 1), p - 1)
            for i in range(node.rank)
        ]
    for count in range(1, len(sums) + 1 if joint else 2):
        for group in itertools.combinations(sorted(sums), count):
            p = math.prod(map(size, group))
            raw.append(({}, sums - set(group), group, 2 * held // p * (p - 1), 2 * (p - 1)))
    for changed, still, *what in raw:
        splits = [changed.get(i, axes) for i, axes in enumerate(node.splits)]
        counts = [math.prod(map(size, axes)) for axes in splits]
        if all(one % slices == 0 for one, slices in zip(node.shape, counts, strict=True)):
            yield TensorLayout(node.mesh, node.shape, splits, still), *what
