# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run relayouts on numpy arrays, one per device: what a plan does, without devices.

Steps work only on what the devices of a group hold, so a wrong plan gives wrong values here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_fuse.layout.relayout import steps as kinds
from tf_fuse.layout.relayout.redistribution import (
    RelayoutPlan,
    RelayoutStep,
    block_of,
    sources_of,
)
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.tensor_layout import TensorLayout

Array = np.ndarray[Any, Any]


def scatter(value: Array, layout: TensorLayout, seed: int = 0) -> list[Array]:
    """Return what each device holds of a tensor.

    Args:
      value: the whole tensor.
      layout: how it lies.
      seed: of the terms of a partial tensor, which are whole numbers between -8 and 8 but for the
        last one.

    Returns:
      An array for each device.

    Raises:
      LayoutError: the tensor has another shape than the layout.
    """
    if value.shape != layout.shape:
        raise LayoutError(f"the tensor has shape {value.shape}, and its layout {layout.shape}")
    terms = _terms(value, [layout.mesh.size_of(axis) for axis in layout.partial], seed)
    return [
        terms[layout.term_of(device)][layout.slice_of(device)].copy()
        for device in range(layout.mesh.size)
    ]


def assemble(pieces: Sequence[Array], layout: TensorLayout) -> Array:
    """Return the whole tensor of what the devices hold.

    Raises:
      LayoutError: devices that must hold the same do not, or a piece has the wrong shape.
    """
    whole: dict[tuple[tuple[tuple[int, int], ...], tuple[int, ...]], tuple[int, Array]] = {}
    for device, piece in enumerate(pieces):
        if piece.shape != layout.slice_shape:
            raise LayoutError(
                f"device {device} holds shape {piece.shape}, expected {layout.slice_shape}"
            )
        at = tuple((one.start, one.stop) for one in layout.slice_of(device))
        first, known = whole.setdefault((at, layout.term_of(device)), (device, piece))
        if not np.array_equal(known, piece):
            raise LayoutError(f"devices {first} and {device} hold different values of slice {at}")
    found = np.zeros(layout.shape, pieces[0].dtype)
    for (at, _), (_, piece) in whole.items():
        found[tuple(slice(*one) for one in at)] += piece
    return found


def run(plan: RelayoutPlan, pieces: Sequence[Array]) -> list[Array]:
    """Return what each device holds after a plan.

    Args:
      plan: the steps.
      pieces: what each device holds before it, as `scatter` of `plan.source` gives it.
    """
    found = list(pieces)
    for step in plan.steps:
        found = run_step(step, [one.reshape(step.before.slice_shape) for one in found])
    return [one.reshape(plan.target.slice_shape) for one in found]


def run_step(step: RelayoutStep, pieces: Sequence[Array]) -> list[Array]:
    """Return what each device holds after one step."""
    if step.kind == kinds.PERMUTE:
        return [pieces[source] for source in sources_of(step)]
    found = list(pieces)
    for group in step.before.mesh.groups(step.axes):
        held = [pieces[device] for device in group]
        for device, piece in zip(group, _communicate(step, held), strict=True):
            found[device] = piece
    return found


def _terms(value: Array, counts: Sequence[int], seed: int) -> Array:
    """Return arrays that add up to a value, in an array over the partial axes."""
    random = np.random.default_rng(seed)
    terms = random.integers(-8, 9, (*counts, *value.shape)).astype(value.dtype)
    flat = terms.reshape(-1, *value.shape)
    flat[-1] = value - flat[:-1].sum(axis=0)
    return terms


def _communicate(step: RelayoutStep, held: Sequence[Array]) -> list[Array]:
    """Return what the devices of a group hold after a step."""
    count = len(held)
    source = step.sources[0] if step.sources else 0
    target = step.targets[0] if step.targets else 0
    if step.kind == kinds.ALL_GATHER:
        return [np.concatenate(held, axis=source)] * count
    if step.kind == kinds.ALL_REDUCE:
        return [_sum(held)] * count
    if step.kind == kinds.REDUCE_SCATTER:
        return np.split(_sum(held), count, axis=target)
    if step.kind == kinds.SLICE:
        return [np.split(one, count, axis=target)[i] for i, one in enumerate(held)]
    if step.kind == kinds.MASK:
        return [held[0], *(np.zeros_like(one) for one in held[1:])]
    if step.kind == kinds.PAD:
        return [
            np.concatenate([one if i == j else np.zeros_like(one) for j in range(count)], source)
            for i, one in enumerate(held)
        ]
    assert step.kind == kinds.ALL_TO_ALL
    return _exchange(step, held)


def _exchange(step: RelayoutStep, held: Sequence[Array]) -> list[Array]:
    """Return what the devices of a group hold after an all-to-all: one block per member."""
    sizes = [step.before.mesh.size_of(axis) for axis in step.axes]
    members = list(itertools.product(*map(range, sizes)))
    found = [np.empty(step.after.slice_shape, held[0].dtype) for _ in members]
    for i, receiver in enumerate(members):
        for j, sender in enumerate(members):
            take = block_of(step, receiver, step.targets, step.after, held[j].shape)
            put = block_of(step, sender, step.sources, step.before, found[i].shape)
            found[i][put] = held[j][take]
    return found


def _sum(terms: Sequence[Array]) -> Array:
    return np.sum(np.stack(terms), axis=0, dtype=terms[0].dtype)
