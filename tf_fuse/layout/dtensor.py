# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs plans of relayouts on `tf.experimental.dtensor`.

    mesh = layout.Mesh({"rows": 2, "cols": 2})
    devices = dtensor.device_mesh(mesh, [f"CPU:{i}" for i in range(4)])
    plan = dtensor.plan(source, target)
    y = dtensor.relayout(x, plan, devices)

DTensor's own relayouts are right where one axis begins or ends to split one dimension, or moves
from a dimension to another, while nothing else changes. With more at once some are silently wrong,
so each step here is one of these, whatever the plan. Of four dimensions or more, all-to-alls
without the first one are wrong, too; there one is made the first for as long as it takes.

A gather has the bytes of the plan where LOWER_DTENSOR_GATHER_TO_COLLECTIVE_GATHER_V2=1 is set
before TensorFlow is imported. Without, DTensor sums tensors padded with zeros on CPU: these are
twice the bytes, and -0.0 becomes 0.0.

DTensor has no partial layouts. A tensor that is partial over some axes has a dimension for each of
them in front, in the mesh's order, of the axis's size and split over it; the tensor is the sum over
these dimensions. A reduce-scatter is an all-to-all from such a dimension, and then a local sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_fuse.layout import steps as kinds
from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.links import Link
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.redistribution import RelayoutPlan, RelayoutStep, plan_relayout
from tf_fuse.layout.steps import StepSet
from tf_fuse.layout.tensor_layout import TensorLayout

# What is known to be right: see the tests, which run every pair of layouts.
STEPS = StepSet(joint=frozenset({kinds.ALL_REDUCE}), stacked=False, pad=False, strided=False)


def device_mesh(mesh: Mesh, devices: Sequence[str] | None = None) -> Any:
    """The DTensor mesh of a mesh, with the same names and order of axes.

    Args:
      mesh: to be made.
      devices: local devices, as "CPU:0", in the mesh's order; None for those that
        `dtensor.create_distributed_mesh` takes, in all processes.

    Returns:
      A `dtensor.Mesh`.

    Raises:
      LayoutError: there are not as many devices as in the mesh.
    """
    if devices is None:
        return dtensor.create_distributed_mesh(list(mesh.dims), device_type="CPU")
    if len(devices) != mesh.size:
        raise LayoutError(f"mesh {str(mesh)!r} has {mesh.size} devices, got {len(devices)}")
    return dtensor.create_mesh(list(mesh.dims), devices=list(devices))


def dtensor_layout(layout: TensorLayout, devices: Any) -> Any:
    """The DTensor layout of a layout; partial axes are dimensions in front.

    Args:
      layout: to be made.
      devices: what `device_mesh` made of its mesh.

    Returns:
      A `dtensor.Layout`.

    Raises:
      LayoutError: a dimension is split over several axes, or the mesh is another one.
    """
    raise_if(_impossible(layout, devices))
    specs = [*layout.partial, *(axes[0] if axes else dtensor.UNSHARDED for axes in layout.splits)]
    return dtensor.Layout(specs, devices)


def plan(
    source: TensorLayout,
    target: TensorLayout,
    item_bytes: int = 4,
    links: Mapping[str, Link] | None = None,
) -> RelayoutPlan:
    """As `tf_fuse.layout.plan_relayout`, of the steps that can be run here."""
    return plan_relayout(source, target, item_bytes, links, STEPS)


def relayout(tensor: Any, steps: RelayoutPlan, devices: Any) -> Any:
    """Runs a plan, eagerly or in a `tf.function`.

    Args:
      tensor: a DTensor that lies as the plan's source says, with a dimension in front for each
        partial axis.
      steps: what `plan` returned.
      devices: what `device_mesh` made of the plan's mesh.

    Returns:
      A DTensor that lies as the plan's target says. Its values are the same; partial ones have the
      same sum.

    Raises:
      LayoutError: a step cannot be run here, since the plan is of others than `STEPS`.
    """
    problems = [
        f"DTensor cannot run the step {step}; make the plan by tf_fuse.layout.dtensor.plan"
        for step in steps.steps
        if step.kind == kinds.PAD or (step.kind != kinds.ALL_REDUCE and len(step.axes) > 1)
    ]
    problems += _impossible(steps.source, devices) + _impossible(steps.target, devices)
    raise_if(problems)
    for step in steps.steps:
        tensor = _run(tensor, step, devices)
    return tensor


def _run(tensor: Any, step: RelayoutStep, devices: Any) -> Any:
    after = dtensor_layout(step.after, devices)
    # Dimensions in front, one for each partial axis.
    before = step.before.partial
    if step.kind == kinds.MASK:
        return dtensor.relayout(_masked(tensor, step), after)
    if step.kind == kinds.ALL_REDUCE:
        places = [before.index(axis) for axis in step.axes]
        return dtensor.relayout(tf.reduce_sum(tensor, places), after)
    if step.kind == kinds.REDUCE_SCATTER:
        place = before.index(step.axes[0])
        specs = list(after.sharding_specs)
        specs.insert(place, dtensor.UNSHARDED)
        exchanged = _exchange(tensor, place, len(before) + step.targets[0], specs, devices)
        return dtensor.relayout(tf.reduce_sum(exchanged, place), after)
    if step.kind == kinds.ALL_TO_ALL:
        places = [len(before) + one for one in (*step.sources, *step.targets)]
        return _exchange(tensor, *places, after.sharding_specs, devices)
    return dtensor.relayout(tensor, after)


def _exchange(tensor: Any, source: int, target: int, specs: Sequence[str], devices: Any) -> Any:
    """An all-to-all between two dimensions of a tensor.

    TensorFlow 2.21 mixes up the blocks of one between two dimensions of which neither is the first,
    where there are four dimensions or more; so one of them is made the first.
    """
    if len(specs) < 4 or 0 in (source, target):
        return dtensor.relayout(tensor, dtensor.Layout(specs, devices))
    order = [source, *(i for i in range(len(specs)) if i != source)]
    there = dtensor.Layout([specs[i] for i in order], devices)
    back = [order.index(i) for i in range(len(specs))]
    return tf.transpose(dtensor.relayout(tf.transpose(tensor, order), there), back)


def _masked(tensor: Any, step: RelayoutStep) -> Any:
    """The tensor and zeros, along a new dimension in front; no product, which NaN would survive."""
    place = step.after.partial.index(step.axes[0])
    zeros = [tf.zeros_like(tensor)] * (step.before.mesh.size_of(step.axes[0]) - 1)
    return tf.stack([tensor, *zeros], place)


def _impossible(layout: TensorLayout, devices: Any) -> list[str]:
    problems = [
        f"DTensor splits a dimension over one axis, but dimension {i} of {layout} is split over "
        f"{', '.join(axes)}; use a mesh in which they are one axis"
        for i, axes in enumerate(layout.splits)
        if len(axes) > 1
    ]
    theirs = [(one.name, one.size) for one in map(devices.__getitem__, devices.dim_names)]
    if tuple(theirs) != layout.mesh.dims:
        problems.append(
            f"the layout is on mesh {str(layout.mesh)!r}, but the devices' mesh is "
            f"{';'.join(f'{name}:{size}' for name, size in theirs)!r}"
        )
    return problems
