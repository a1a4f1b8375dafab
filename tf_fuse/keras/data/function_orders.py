# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Give the datasets that a program's function makes on workers another order in each pass.

A worker calls the function anew in each pass, so seeded datasets would begin anew, too: each epoch
would have the order of the first. In one process, each pass over a dataset takes the next seeds of
its generator. So the function's operations get the seeds of the pass; see `orders.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow.graphs.functions import set_flag
from tf_fuse._tensorflow.graphs.rewrite_after_trace import set_input
from tf_fuse.keras.data.orders import ANEW, place_of_seeds, readers


class _Key:
    """Counts passes, as a dataset does."""


_of_methods: weakref.WeakKeyDictionary[Any, dict[Any, _Key]] = weakref.WeakKeyDictionary()


class PassOfFunction:
    """A function of an `InputContext` and of a pass that makes the dataset of a worker.

    Args:
      function: of an `InputContext`, the program's.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __repr__(self) -> str:
        """Show the program's function, which errors name."""
        return repr(self._function)

    def __call__(self, context: Any, number: Any) -> Any:
        """Make the dataset of an input pipeline.

        Args:
          context: the `InputContext`.
          number: of the pass, a scalar tensor.
        """
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        before = set(graph.get_operations())
        dataset = self._function(context)
        made = [op for op in graph.get_operations() if op not in before]
        nodes = [op.node_def for op in made]
        for op, node in zip(made, nodes, strict=True):
            _seed(op, node, nodes, number)
        return dataset


def number_of_pass(number: int) -> Any:
    """Return the tensor that `PassOfFunction` gets."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        return tf.constant(number, tf.int64)


def key_of(function: Callable[..., Any]) -> Any:
    """Return what counts the passes over a function's datasets."""
    try:
        # (A bound method is another object each time that a program names it.)
        owner, method = getattr(function, "__self__", None), getattr(function, "__func__", None)
        if method is not None:
            return _of_methods.setdefault(owner, {}).setdefault(method, _Key())
        weakref.ref(function)
        hash(function)
    except TypeError:  # Passes are counted from the call of `fit` on.
        return _Key()
    return function


def _seed(op: Any, node: Any, nodes: list[Any], number: Any) -> None:
    """Give an operation of a dataset the seeds of a pass, if passes differ."""
    import tensorflow as tf

    first = place_of_seeds(node.op)
    flags = [name for name in ANEW if name in node.attr and node.attr[name].b]
    if first is None or not flags:
        return
    repeats, is_cached = readers(node, nodes)
    if is_cached:
        return
    old = list(op.inputs[first : first + 2])
    new = _seeds_of_pass(old, number)
    # (Without seeds, TensorFlow draws others each time. What is repeated goes on within a pass.)
    is_kept = tf.reduce_all(tf.equal(tf.stack(old), 0))
    if repeats:
        is_kept |= tf.equal(number, 0)
    for index, seed in enumerate(old):
        set_input(op, first + index, tf.where(is_kept, seed, new[index]))
    if not repeats:
        for name in flags:
            set_flag(op, name, False)


def _seeds_of_pass(seeds: list[Any], number: Any) -> Any:
    """Return the seeds that TensorFlow's generator gives to a pass, as tensors."""
    import tensorflow as tf

    variant = tf.raw_ops.RandomDataset(
        seed=seeds[0], seed2=seeds[1], output_types=[tf.int64], output_shapes=[[]]
    )
    numbers = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))
    pair = numbers.skip(2 * number).batch(2).take(1).get_single_element()
    return tf.unstack(tf.ensure_shape(pair, [2]))
