# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs relayouts on eight logical CPU devices, and prints what came of it as JSON.

A process of its own, since logical devices have to be made before TensorFlow uses any.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor as stock
from tensorflow.python.eager import context

from benchmarks import layout_brute_force
from tf_fuse.layout import LayoutError, Mesh, TensorLayout, baselines, simulation
from tf_fuse.layout import dtensor as ours
from tf_fuse.layout.dtensor_bench import Bench
from tf_fuse.layout.measurement import measure

# Sizes of the mesh, shape of the tensor, and whether it may be partial.
CASES = {
    "1-D": ((4,), (4, 8), True),
    "2-D": ((2, 2), (4, 4), True),
    "2x4": ((2, 4), (8, 8), False),
    "2x2x2": ((2, 2, 2), (2, 4, 2), False),
    "rank 4": ((2, 2), (2, 2, 4, 2), False),
    "rank 5": ((4,), (4, 4, 4, 4, 4), False),
}
# Of DTensor's own relayouts, with real gathers.
STOCK = (
    ((2, 4), "yx", "UU"),
    ((2, 4), "yx", "yU"),
    ((2, 2, 2), "xUy", "Uxy"),
    ((2, 2, 2), "xUy", "Uxz"),
    ((2,), "UxU", "UUx"),
    ((2,), "xUUU", "UUUx"),
    ((2,), "UxUU", "UUxU"),
)


def devices_of(mesh: Mesh) -> Any:
    return ours.device_mesh(mesh, [f"CPU:{i}" for i in range(mesh.size)])


def layouts(mesh: Mesh, shape: tuple[int, ...], partial: bool) -> list[TensorLayout]:
    found = layout_brute_force.layouts(mesh, shape, partial)
    return [one for one in found if all(len(axes) < 2 for axes in one.splits)]


def packed(value: np.ndarray, layout: TensorLayout, devices: Any) -> Any:
    front = (1,) * len(layout.partial)
    pieces = [tf.constant(one.reshape(front + one.shape))
              for one in simulation.scatter(value, layout, seed=1)]  # fmt: skip
    return stock.pack(pieces, ours.dtensor_layout(layout, devices))


def is_right(result: Any, value: np.ndarray, layout: TensorLayout, devices: Any) -> bool:
    if stock.fetch_layout(result) != ours.dtensor_layout(layout, devices):
        return False
    pieces = [one.numpy().reshape(layout.slice_shape) for one in stock.unpack(result)]
    try:
        return bool(np.array_equal(simulation.assemble(pieces, layout), value))
    except LayoutError:
        return False


def values(case: str) -> dict[str, Any]:
    """Every pair of layouts, by plans."""
    sizes, shape, partial = CASES[case]
    mesh = Mesh(zip("xyz", sizes, strict=False))
    devices = devices_of(mesh)
    value = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    wrong, pairs = [], 0
    nodes = layouts(mesh, shape, partial)
    for source in nodes:
        tensor = packed(value, source, devices)
        for target in nodes:
            pairs += 1
            result = ours.relayout(tensor, ours.plan(source, target), devices)
            if not is_right(result, value, target, devices):
                wrong.append(f"{source} -> {target}")
    return {"pairs": pairs, "wrong": wrong}


def in_a_function() -> dict[str, Any]:
    """Of a traced relayout and its gradient, and of values that sums of zeros do not keep."""
    mesh = Mesh({"x": 2, "y": 2})
    devices = devices_of(mesh)
    source, target = (
        TensorLayout(mesh, (4, 4), [["x"], ["y"]]),
        TensorLayout(mesh, (4, 4), [["y"], ["x"]]),
    )
    plan = ours.plan(source, target)

    @tf.function
    def traced(tensor: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            result = ours.relayout(tensor, plan, devices)
            loss = tf.reduce_sum(result * result)
        return result, tape.gradient(loss, tensor)

    value = np.array([[-0.0, np.inf, np.nan, 1.0]] * 4, np.float32)
    result, gradient = traced(packed(value, source, devices))
    bits = [one.numpy().tobytes() for one in stock.unpack(result)]
    expected = [one.tobytes() for one in simulation.scatter(value, target)]
    whole = simulation.assemble([one.numpy() for one in stock.unpack(
        traced(packed(np.ones((4, 4), np.float32), source, devices))[1])], source)  # fmt: skip
    wanted = ours.dtensor_layout(source, devices)
    return {
        "bits": bits == expected,
        "gradient": whole.tolist() == [[2.0] * 4] * 4,
        "gradient_layout": stock.fetch_layout(gradient) == wanted,
    }


def stock_is_right(sizes: tuple[int, ...], first: str, last: str) -> bool:
    """Whether DTensor's own relayout keeps the values; a letter is an axis, or U for none."""
    mesh = Mesh(zip("xyz", sizes, strict=False))
    devices = devices_of(mesh)
    shape = (16,) * len(first)
    value = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    source, target = (
        TensorLayout(mesh, shape, [[] if letter == "U" else [letter] for letter in word])
        for word in (first, last)
    )
    tensor = packed(value, source, devices)
    result = stock.relayout(tensor, ours.dtensor_layout(target, devices))
    return is_right(result, value, target, devices)


def inserted(mesh: Mesh, shape: tuple[int, ...], stride: int) -> dict[str, Any]:
    """What DTensor's own relayouts insert and give, against what the baseline says."""
    devices = devices_of(mesh)
    value = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    nodes = layouts(mesh, shape, False)
    differ, pairs, wrong = [], 0, 0
    for source, target in list(itertools.permutations(nodes, 2))[::stride]:
        pairs += 1
        layout = ours.dtensor_layout(target, devices)
        function = tf.function(lambda tensor, layout=layout: stock.relayout(tensor, layout))
        tensor = packed(value, source, devices)
        expected = baselines.dtensor_default(source, target, padded=True)
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


def calibration() -> dict[str, Any]:
    """A short run on a mesh: what it says, but for the times themselves."""
    mesh = Mesh({"x": 2, "y": 2})
    bench = Bench(mesh, devices_of(mesh))
    found = measure(mesh, bench, rounds=2)
    links = dict(found.rates.links)
    numbers = [found.rates.seconds_per_flop, found.rates.seconds_per_byte,
               found.rates.seconds_per_operation]  # fmt: skip
    numbers += [one for link in links.values() for one in dataclasses.astuple(link)]
    return {
        "mesh": str(found.rates.mesh),
        "axes": [axis for axis, _ in found.link_errors],
        "numbers": all(math.isfinite(one) and one >= 0 for one in numbers),
        "something": sum(one > 0 for one in numbers) >= 3,
        "agreed": bench.agreed([1.0, 2.0]),
    }


def errors() -> list[str]:
    mesh = Mesh({"x": 2, "y": 2})
    devices = devices_of(mesh)
    stacked, other = TensorLayout(mesh, (4,), [["x", "y"]]), TensorLayout(Mesh({"x": 4}), (4,))
    calls = [
        lambda: ours.dtensor_layout(stacked, devices),
        lambda: ours.dtensor_layout(other, devices),
        lambda: ours.device_mesh(mesh, ["CPU:0"]),
        lambda: ours.relayout(None, ours.plan(TensorLayout(mesh, (4,)), stacked), devices),
        lambda: ours.relayout(None, joint, devices),
    ]
    from tf_fuse.layout import plan_relayout

    joint = plan_relayout(TensorLayout(mesh, (4,), [["x"]]), TensorLayout(mesh, (4,), None, ["x"]))
    found = []
    for call in calls:
        try:
            call()
        except LayoutError as error:
            found.append(str(error))
    return found


def main() -> None:
    """Prints one line."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
    )
    if sys.argv[1] == "inserted":
        result: dict[str, Any] = {
            "2x4": inserted(Mesh({"x": 2, "y": 4}), (8, 8), 1),
            "2x2x2": inserted(Mesh({"x": 2, "y": 2, "z": 2}), (16, 16, 16), 14),
        }
    else:
        result = {case: values(case) for case in CASES}
        result |= {"function": in_a_function(), "errors": errors()}
        result["calibration"] = calibration()
        result["stock"] = {
            f"{sizes} {first} {last}": stock_is_right(sizes, first, last)
            for sizes, first, last in STOCK
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
