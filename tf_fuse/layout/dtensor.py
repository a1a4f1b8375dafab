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

Nor are there dimensions that several axes split. Where a plan passes through one, it is several
dimensions for as long as it takes, one for each axis; so such plans run, but cannot begin or end
there.

A gather has the bytes of the plan where LOWER_DTENSOR_GATHER_TO_COLLECTIVE_GATHER_V2=1 is set
before TensorFlow is imported. Without, DTensor sums tensors padded with zeros on CPU: these are
twice the bytes, and -0.0 becomes 0.0.

DTensor has no partial layouts. A tensor that is partial over some axes has a dimension for each of
them in front, in the mesh's order, of the axis's size and split over it; the tensor is the sum over
these dimensions. A reduce-scatter is an all-to-all from such a dimension, and then a local sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

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
STEPS = StepSet(joint=frozenset({kinds.ALL_REDUCE}), pad=False, strided=False)


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
    cut = frozenset(
        i for step in steps.steps for i, axes in enumerate(step.after.splits) if len(axes) > 1
    )
    tensor = _reshaped(tensor, _dims(steps.source, cut), devices)
    for step in steps.steps:
        tensor = _run(tensor, step, cut, devices)
    return _reshaped(tensor, _dims(steps.target), devices)


class _Dim(NamedTuple):
    """A dimension of a DTensor.

    Attributes:
      key: ("sum", axis) in front of a tensor that is partial over the axis; (i, axis) of dimension
        i where it is cut, one for each axis that splits it; (i, None) of the rest of it, or all.
      size: number of elements in all devices together.
      spec: the axis that splits it, or UNSHARDED.
    """

    key: tuple[Any, str | None]
    size: int
    spec: str


def _dims(
    layout: TensorLayout, cut: Collection[int] = (), also: TensorLayout | None = None
) -> list[_Dim]:
    """The dimensions of a DTensor that lies as a layout says.

    Args:
      layout: how it lies.
      cut: dimensions that are several, since more than one axis splits them on the way.
      also: another layout by whose axes these are cut, too.
    """
    size_of = layout.mesh.size_of
    found = [_Dim(("sum", axis), size_of(axis), axis) for axis in layout.partial]
    for i, axes in enumerate(layout.splits):
        size = layout.shape[i]
        if i not in cut:
            found.append(_Dim((i, None), size, axes[0] if axes else dtensor.UNSHARDED))
            continue
        for axis in max(axes, axes if also is None else also.splits[i], key=len):
            spec = axis if axis in axes else dtensor.UNSHARDED
            found.append(_Dim((i, axis), size_of(axis), spec))
            size //= size_of(axis)
        found.append(_Dim((i, None), size, dtensor.UNSHARDED))
    return found


def _run(tensor: Any, step: RelayoutStep, cut: Collection[int], devices: Any) -> Any:
    after = _dims(step.after, cut)
    if step.kind == kinds.MASK:
        return _relayout(_masked(tensor, step), after, devices)
    if step.kind == kinds.ALL_REDUCE:
        places = [step.before.partial.index(axis) for axis in step.axes]
        return _relayout(tf.reduce_sum(tensor, places), after, devices)
    # The dimensions of both sides. Those that only one has are whole on the other one.
    before = _dims(step.before, cut, step.after)
    specs = {one.key: one.spec for one in _dims(step.after, cut, step.before)}
    there = [one._replace(spec=specs.get(one.key, dtensor.UNSHARDED)) for one in before]
    tensor = _relayout(_reshaped(tensor, before, devices), there, devices, before)
    if step.kind == kinds.REDUCE_SCATTER:
        tensor = tf.reduce_sum(tensor, step.before.partial.index(step.axes[0]))
    return _reshaped(tensor, after, devices)


def _reshaped(tensor: Any, dims: Sequence[_Dim], devices: Any) -> Any:
    """The tensor with other dimensions; nothing is moved, as each device keeps its elements."""
    sizes = [one.size for one in dims]
    if tensor.shape.as_list() != sizes:
        tensor = tf.reshape(tensor, sizes)
    return _relayout(tensor, dims, devices)


def _relayout(
    tensor: Any, dims: Sequence[_Dim], devices: Any, before: Sequence[_Dim] | None = None
) -> Any:
    """DTensor's relayout, of what it gets right.

    TensorFlow 2.21 mixes up the blocks of an all-to-all between two dimensions of which neither is
    the first, where there are four dimensions or more; so one of them is made the first.
    """
    specs = [one.spec for one in dims]
    changed = [i for i, one in enumerate(before or dims) if one.spec != specs[i]]
    if len(changed) < 2 or 0 in changed or len(specs) < 4:
        return dtensor.relayout(tensor, dtensor.Layout(specs, devices))
    order = [changed[0], *(i for i in range(len(specs)) if i != changed[0])]
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
