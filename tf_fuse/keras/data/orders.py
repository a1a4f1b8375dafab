# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Give a dataset one order, wherever and however often its graph is read.

Workers that divide a dataset must agree on its order, and so must a worker that begins anew. So
seeds that TensorFlow would draw are drawn here, and operations that may change the order keep it.

In one process, each pass over a dataset takes the next two numbers of a generator as the seeds of
`shuffle`. A graph forgets how many passes there were; so it gets the seeds of its pass.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

# Where the two seeds are among the inputs, by how the operation's name begins.
_SEEDS: Final = {"ShuffleDataset": 2, "ShuffleAndRepeat": 2, "RandomDataset": 0, "Sampling": 2}
ANEW: Final = ("reshuffle_each_iteration", "rerandomize_each_iteration")
_REPEATING: Final = ("RepeatDataset", "ForeverRepeat", "ShuffleAndRepeat")
_PER_ELEMENT: Final = ("FlatMap", "Interleave", "ParallelInterleave", "LegacyParallelInterleave")
_numbers = itertools.count()
_made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # passes


class Passes:
    """The passes over a dataset that Keras would have made in one process.

    Args:
      dataset: that `fit` or `evaluate` gets, or the function that makes it.
      cardinality: of the dataset; None if epochs have a number of steps, and do not end with data.
    """

    def __init__(self, dataset: Any, cardinality: int | None):
        self._dataset = dataset
        # If Keras knows the length, it makes an iterator at the end of an epoch, too.
        self._step = 1 if cardinality is None or cardinality < 0 else 2

    def begin(self, epoch: int | None = None) -> int:
        """Return the number of the pass that begins.

        Args:
          epoch: that goes on after this process was started again; None for the next one.
        """
        number = _made.get(self._dataset, 0) if epoch is None else epoch * self._step
        _made[self._dataset] = number + self._step
        return number


class Order:
    """The graph of a dataset, with one order for each pass.

    Args:
      graph: a `GraphDef`, which changes.
    """

    def __init__(self, graph: Any):
        self._graph = graph
        # Two seeds, the constants in their place, and whether one pass takes several pairs.
        self._anew: list[tuple[list[int], list[Any], bool]] = []
        self._serialized: Any = None  # if all passes have the same seeds
        _keep_order(graph.node)
        self._seed(graph.node, is_function=False)
        for function in graph.library.function:
            _keep_order(function.node_def)
            self._seed(function.node_def, is_function=True)

    def serialized(self, number: int) -> Any:
        """Return the serialized graph for a pass, a tensor."""
        import tensorflow as tf

        if self._serialized is None:
            for seeds, constants, repeats in self._anew:
                # The generator of a dataset that is repeated goes on within a pass.
                new = seeds if repeats and not number else _seeds_of_pass(seeds, number)
                for constant, seed in zip(constants, new, strict=True):
                    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed, tf.int64))
            with tf.device("CPU:0"):
                found = tf.constant(self._graph.SerializeToString())
            if self._anew:
                return found
            self._serialized = found
        return self._serialized

    def _seed(self, nodes: Any, is_function: bool) -> None:
        """Give seeds to the nodes of a graph, or of a function."""
        by_name = {node.name: node for node in nodes}
        for node in list(nodes):
            first = place_of_seeds(node.op)
            if first is None:
                continue
            found = [_value(by_name.get(one.partition(":")[0])) for one in node.input[first:][:2]]
            seeds = [one for one in found if one is not None]
            if len(seeds) < len(found):  # computed in a function
                continue
            is_unseeded = not any(seeds)
            if is_unseeded:
                seeds = [secrets.randbits(62) + 1, secrets.randbits(62)]
            repeats, is_cached = readers(node, nodes) if not is_function else (True, False)
            is_anew = any(node.attr[one].b for one in ANEW if one in node.attr)
            if is_function:  # Each element has a generator of its own, which begins anew.
                is_anew = is_unseeded
            if is_anew and not is_cached:
                constants = _constants(nodes, node, first, seeds, is_function)
                self._anew.append((seeds, constants, repeats))
                for one in ANEW:
                    if one in node.attr and not repeats:
                        node.attr[one].b = False
            elif is_unseeded:
                _constants(nodes, node, first, seeds, is_function)


def place_of_seeds(op: str) -> int | None:
    """Return where two seeds are among the inputs of an operation; None if it has none."""
    if op == "ShuffleDatasetV2":
        return None
    return next((at for name, at in _SEEDS.items() if op.startswith(name)), None)


def _keep_order(nodes: Any) -> None:
    """Let operations of a graph, or of a function, keep the order of their inputs."""
    import tensorflow as tf

    for node in nodes:
        if "deterministic" in node.attr and node.attr["deterministic"].s in (b"false", b"default"):
            node.attr["deterministic"].s = b"true"
        if "sloppy" in node.attr:
            node.attr["sloppy"].b = False
        if node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum:
            for handle in node.attr["value"].tensor.resource_handle_val:
                # A worker makes what a handle stands for, if it does not have one of that name.
                handle.name = f"tf_fuse/{secrets.token_hex(8)}/{next(_numbers)}"


def readers(node: Any, nodes: Any) -> tuple[bool, bool]:
    """Return whether one pass reads a node several times, and whether a cache keeps it."""
    found, repeats, is_cached = {node.name}, False, False
    for one in _after(node, nodes):
        at = [i for i, name in enumerate(one.input) if name.partition(":")[0] in found]
        if not at:
            continue
        found.add(one.name)
        repeats |= one.op.startswith(_REPEATING)
        repeats |= one.op.startswith(_PER_ELEMENT) and at != [0]
        is_cached |= one.op.startswith("Cache")
    return repeats, is_cached


def _after(node: Any, nodes: Any) -> Iterator[Any]:
    """Yield the nodes after one; a dataset's graph has its nodes in order."""
    return itertools.islice(itertools.dropwhile(lambda one: one.name != node.name, nodes), 1, None)


def _constants(
    nodes: Any, node: Any, first: int, seeds: Sequence[int], is_function: bool
) -> list[Any]:
    """Make two constants the seeds of a node: others may use those it had."""
    import tensorflow as tf

    found = []
    for i, seed in enumerate(seeds):
        constant = nodes.add(name=f"{node.name}/tf_fuse_seed_{i}", op="Const")
        constant.attr["dtype"].type = tf.int64.as_datatype_enum
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed, tf.int64))
        node.input[first + i] = constant.name + (":output:0" if is_function else "")
        found.append(constant)
    return found


def _value(node: Any) -> int | None:
    """Return the number that a node yields; None if it is not a constant."""
    import tensorflow as tf

    if node is None or node.op != "Const":
        return None
    return int(tf.make_ndarray(node.attr["value"].tensor))


def _seeds_of_pass(seeds: Sequence[int], number: int) -> list[int]:
    """Return the seeds that TensorFlow's generator gives to a pass."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        variant = tf.raw_ops.RandomDataset(
            seed=tf.constant(seeds[0], tf.int64),
            seed2=tf.constant(seeds[1], tf.int64),
            output_types=[tf.int64],
            output_shapes=[[]],
        )
        numbers = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))
        return [int(one) for one in numbers.skip(2 * number).take(2)]
