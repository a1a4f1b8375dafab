# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs stock DTensor's relayouts on eight logical CPU devices; compares them with the baseline.

A process of its own, since logical devices have to be made before TensorFlow uses any.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor as stock
from tensorflow.python.eager import context

from benchmarks.layout import baselines as layout_baselines
from benchmarks.layout import brute_force as layout_brute_force
from benchmarks.layout import simulation
from tests import scripted
from tf_fuse.layout import LayoutError, Mesh, TensorLayout


def devices_of(mesh: Mesh) -> Any:
    return stock.create_mesh(list(mesh.dims), devices=[f"CPU:{i}" for i in range(mesh.size)])


def dtensor_layout(layout: TensorLayout, devices: Any) -> Any:
    specs = [axes[0] if axes else stock.UNSHARDED for axes in layout.splits]
    return stock.Layout(specs, devices)


def layouts(mesh: Mesh, shape: tuple[int, ...]) -> list[TensorLayout]:
    found = layout_brute_force.layouts(mesh, shape, partial=False)
    return [one for one in found if all(len(axes) < 2 for axes in one.splits)]


def packed(value: np.ndarray, layout: TensorLayout, devices: Any) -> Any:
    pieces = [tf.constant(one) for one in simulation.scatter(value, layout)]
    return stock.pack(pieces, dtensor_layout(layout, devices))


def is_right(result: Any, value: np.ndarray, layout: TensorLayout, devices: Any) -> bool:
    if stock.fetch_layout(result) != dtensor_layout(layout, devices):
        return False
    pieces = [one.numpy().reshape(layout.slice_shape) for one in stock.unpack(result)]
    try:
        return bool(np.array_equal(simulation.assemble(pieces, layout), value))
    except LayoutError:
        return False


def inserted(mesh: Mesh, shape: tuple[int, ...], stride: int) -> dict[str, Any]:
    """What DTensor's own relayouts insert and give, against what the baseline says."""
    devices = devices_of(mesh)
    value = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    nodes = layouts(mesh, shape)
    differ, pairs, wrong = [], 0, 0
    for source, target in list(itertools.permutations(nodes, 2))[::stride]:
        pairs += 1
        layout = dtensor_layout(target, devices)
        function = tf.function(lambda tensor, layout=layout: stock.relayout(tensor, layout))
        tensor = packed(value, source, devices)
        expected = layout_baselines.dtensor_default(source, target, padded=True)
        wrong += not expected.right
        context.context().enable_run_metadata()
        try:
            result = function(tensor)
            context.async_wait()
        except tf.errors.OpError as error:
            # It mixes up shapes, too, where they do not happen to fit.
            if expected.right:
                differ.append(f"{source} -> {target}: {error}")
            continue
        finally:
            metadata = context.context().export_run_metadata()
            context.context().disable_run_metadata()
        found = collectives(metadata, mesh.size)
        moving = [step for step in expected.steps if step.received_bytes]
        if found != {step.kind: step.received_bytes for step in moving} or (
            is_right(result, value, target, devices) != expected.right
        ):
            differ.append(f"{source} -> {target}: {found}, expected {expected}")
    return {"pairs": pairs, "wrong": wrong, "differ": differ}


def collectives(metadata: Any, size: int) -> dict[str, int]:
    """Bytes that all devices together receive, by kind of collective."""
    found: dict[str, int] = {}
    names = {"CollectiveReduceV2": ("all_reduce", 2), "CollectiveAllToAllV2": ("all_to_all", 1)}
    for graphs in metadata.function_graphs:
        for graph in graphs.partition_graphs:
            groups = {node.name: group_of(graph, node) for node in graph.node if node.op in names}
            for node in graph.node:
                if node.op in names:
                    kind, times = names[node.op]
                    dims = node.attr["_output_shapes"].list.shape[0].dim
                    held, members = 4 * math.prod(one.size for one in dims), groups[node.name]
                    found[kind] = found.get(kind, 0) + times * held * (members - 1) // members
    return found


def group_of(graph: Any, node: Any) -> int:
    """The number of members of a collective: the size of its group's rows."""
    by_name = {one.name: one for one in graph.node}
    size = node.input[1].split(":")[0]
    while by_name[size].op != "Const" and by_name[size].input:
        if by_name[size].op == "CollectiveAssignGroupV2":
            size = by_name[size].input[0].split(":")[0]
            return int(tf.make_ndarray(by_name[size].attr["value"].tensor).shape[1])
        size = by_name[size].input[0].split(":")[0]
    return int(tf.make_ndarray(by_name[size].attr["value"].tensor))


def main() -> None:
    """Gives one result."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
    )
    scripted.give({
        "2x4": inserted(Mesh({"x": 2, "y": 4}), (8, 8), 1),
        "2x2x2": inserted(Mesh({"x": 2, "y": 2, "z": 2}), (16, 16, 16), 14),
    })  # fmt: skip


if __name__ == "__main__":
    main()
