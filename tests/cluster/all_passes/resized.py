# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train vectors of every size with one traced step, with stock updates and with fused ones.

To trace and rewrite a step takes a hundred times as long as to run it. So one step is traced, and
then its variables get values of other sizes: TensorFlow's operations take what comes, and fused
operations get another size, the only thing in them that depends on it (those of other traces show
it). Vectors of one element, which Grappler treats in another way, are in traces (`every_size`).

A replica that updates a shard computes a window of a vector. So some are trained as windows: what a
replica owns of them has the bits of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as context_module

from tests.cluster.all_passes import every_size
from tests.cluster.all_passes.bias_sizes import LAST

STEPS = 40
_VECTORS = 64  # of a step
_TRACED = range(601, 601 + _VECTORS)
_OTHERS = range(2001, 2005)  # of another trace, whose fused operations are compared
_SHOWN = 20  # differences
_ELEMENTWISE, _STAGED = "TfFuse>ElementwiseUpdate", "TfFuse>StagedUpdate"
_Range = tuple[int, int]
_Call = Callable[..., Any]
_Switch = Callable[[bool], None]


class _Vectors:
    """Vectors, their optimizer, and a step of both.

    Attributes:
      name: of the step's function.
      begun: what each vector and each of its slots begins with, in all elements.
    """

    def __init__(self, strategy: Any, make: Callable[[], Any], sizes: Sequence[int]):
        """Makes everything, and traces the step.

        Args:
          strategy: has the variables.
          make: makes the optimizer.
          sizes: of the vectors, all different.
        """
        self._sizes = list(sizes)
        with every_size.made_variables() as made:
            with strategy.scope():
                self._weights = [tf.Variable(tf.zeros([size])) for size in sizes]
                self._optimizer = make()
                if hasattr(self._optimizer, "build"):
                    self._optimizer.build(self._weights)

            def step(*args: Any) -> Any:
                return strategy.run(self._replica, args=args)

            numbers = [tf.TensorSpec([]), *[tf.TensorSpec([None])] * 2]
            numbers.insert(1, tf.TensorSpec([len(sizes)], tf.int32))
            self._step = tf.function(step, numbers, autograph=False)
            traced = self._step.get_concrete_function()
        self.name = traced._inference_function.cached_definition.signature.name
        values = [(variable, tf.convert_to_tensor(variable).numpy()) for variable in made]
        self._vectors = [(v, value) for v, value in values if v.shape.rank == 1]
        self._others = [(v, value) for v, value in values if v.shape.rank != 1]
        self.begun = [value[0] for _, value in self._vectors]
        for _, value in self._vectors:
            assert len(value) in sizes
            assert np.all(value == value[0])
        self._begin = tf.function(self._assign, autograph=False)
        self._end = tf.function(self._read, autograph=False)

    def _replica(self, x: Any, sizes: Any, inputs: Any, wanted: Any) -> Any:
        """Each element has an input, a weight and a target."""
        inputs, wanted = tf.split(x * inputs, sizes), tf.split(wanted, sizes)
        outputs = [tf.tanh(a + b) for a, b in zip(inputs, self._weights, strict=True)]
        # A sum over replicas is not elementwise either, and its shape is known. So is a roll's.
        nothing = tf.cast(0.0 * x, tf.int32)
        gradients = [tf.roll(a - b, nothing, 0) for a, b in zip(outputs, wanted, strict=True)]
        self._optimizer.apply_gradients(zip(gradients, self._weights, strict=True))
        return tf.reduce_sum(outputs[0])

    def _assign(self, sizes: Any) -> None:
        for variable, value in self._others:
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        for variable, value in self._vectors:
            size = sizes[self._sizes.index(len(value))]
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.fill([size], value[0]))

    def _read(self) -> Any:
        read = [
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            for variable, _ in self._vectors
        ]
        return tf.concat(read, axis=0)

    def train(self, ranges: Sequence[_Range], call: _Call, switch: _Switch) -> list[Any]:
        """Trains vectors of other sizes from their beginning.

        Args:
          ranges: of the inputs, weights and targets that each vector has.
          call: calls the step.
          switch: switches fused updates on and off.

        Returns:
          The vectors and their slots.
        """
        sizes = [end - begin for begin, end in ranges]
        self._begin(tf.constant(sizes))
        numbers = np.random.default_rng(7).standard_normal([2, LAST]).astype("float32")
        given = np.concatenate([numbers[:, begin:end] for begin, end in ranges], axis=1)
        arguments = tf.constant(sizes), *map(tf.constant, given)
        switch(True)
        for i in range(STEPS):
            call(self._step, tf.constant(float(np.cos(i))), *arguments)
        switch(False)
        ends = np.cumsum([sizes[self.vector_of(i)] for i in range(len(self._vectors))])
        return np.split(self._end().numpy(), ends[:-1])

    def vector_of(self, index: int) -> int:
        """The number of the vector that one of what `train` returns is of."""
        return self._sizes.index(len(self._vectors[index][1]))


class _FusedStep:
    """The function that runs in place of a step."""

    def __init__(self, rewritten: dict[bytes, bytes | None], step: str, sizes: Sequence[int]):
        self._context, self._rewritten = context_module.context(), rewritten
        self._step, self._sizes, self._count = step.encode(), sizes, 0
        name = rewritten.get(self._step)
        self._definition = None if name is None else self._context.get_function_def(name)

    def programs(self) -> set[str]:
        """What the fused operations compute, without sizes."""
        if self._definition is None:
            return set()
        nodes = _resized(self._definition, dict.fromkeys(self._sizes, 0)).node_def
        return {n.attr["program"].s.hex() for n in nodes if n.op in (_ELEMENTWISE, _STAGED)}

    def resize(self, sizes: Sequence[int]) -> None:
        """Makes it one for vectors of other sizes."""
        if self._definition is None:
            return
        new = _resized(self._definition, dict(zip(self._sizes, sizes, strict=True)))
        self._count += 1
        new.signature.name += f"_{self._count}"
        self._context.add_function_def(new)
        self._rewritten[self._step] = new.signature.name.encode()


def _resized(definition: Any, sizes: Mapping[int, int]) -> Any:
    """A copy of a function whose fused operations have other sizes."""
    new = type(definition)()
    new.CopyFrom(definition)
    for node in new.node_def:
        if node.op not in (_ELEMENTWISE, _STAGED):
            continue
        message, programs = _read(node)
        for program in programs:
            program.size = sizes.get(program.size, program.size)
        node.attr["program"].s = message.SerializeToString(deterministic=True)
        for dim in (dim for shape in node.attr["shapes"].list.shape for dim in shape.dim):
            dim.size = sizes.get(dim.size, dim.size)
    return new


def _read(node: Any) -> tuple[Any, list[Any]]:
    """The message of a fused operation, and the programs in it."""
    from tf_fuse.v1 import staged_update_pb2, update_pb2

    if node.op == _ELEMENTWISE:
        program = update_pb2.UpdateProgram.FromString(node.attr["program"].s)
        return program, [program]
    update = staged_update_pb2.StagedUpdate.FromString(node.attr["program"].s)
    return update, [stage.program for stage in update.stages]


def compared(
    strategy: Any,
    make: Callable[[], Any],
    call: _Call,
    switch: _Switch,
    rewritten: Callable[[], dict[bytes, bytes | None]],
    first: int | None = None,
) -> dict[str, Any]:
    """Train vectors of every size for forty steps with stock updates, and with fused ones.

    Args:
      strategy: has the variables.
      make: makes the optimizer.
      call: calls a step with its arguments.
      switch: switches fused updates on and off.
      rewritten: returns the names of rewritten functions, by those of functions.
      first: what the first vector is: 0 is whole, 1 and 2 are the windows of two replicas, and so
        on; without it, all are whole.

    Returns:
      How many sizes were tried; how far vectors and slots are apart, and which differ; of how many
      most elements ended as they began; what fused operations compute, without sizes, and what
      those of another trace compute besides.
    """
    # Processes without the plugin import this module, too.
    from tf_fuse.sharded_variable.shard_spec import window

    vectors = _Vectors(strategy, make, _TRACED)
    differences = _Differences(vectors)
    ranges = [(0, size) for size in _TRACED]

    def stock(on: bool) -> None:
        switch(False)

    stock_values = vectors.train(ranges, call, stock)
    differences.add(ranges, ranges, vectors.train(ranges, call, switch), stock_values)
    fused = _FusedStep(rewritten(), vectors.name, _TRACED)
    programs = fused.programs()

    tried = set()
    for sizes in rounds():
        tried |= set(sizes)
        whole = [(0, size) for size in sizes]
        own = whole if first is None else [_owned(size, first + size) for size in sizes]
        ranges = [window(*one) for one in zip(own, sizes, strict=True)]
        stock_values = vectors.train(whole, call, stock)
        fused.resize([end - begin for begin, end in ranges])
        differences.add(ranges, own, vectors.train(ranges, call, switch), stock_values)
    others = _Vectors(strategy, make, _OTHERS)
    others.train([(0, size) for size in _OTHERS], call, switch)
    other_programs = _FusedStep(rewritten(), others.name, _OTHERS).programs()
    return {
        "sizes": len(tried),
        "apart": differences.apart,
        "differ": differences.found[:_SHOWN],
        "still": differences.still,
        "programs": sorted(programs),
        "other": sorted(other_programs - programs),
    }


def rounds() -> list[list[int]]:
    """Every size, as many as there are vectors at a time, small and large ones."""
    count = -(-LAST // _VECTORS)
    sizes = [[*range(1 + i, LAST + 1, count)] for i in range(count)]
    return [[*some, *some[: _VECTORS - len(some)]] for some in sizes]


def _owned(size: int, which: int) -> _Range:
    """What a replica owns of a vector: all, the first elements of it, or the others."""
    cut = int(np.random.default_rng(size).integers(1, max(2, size)))
    return [(0, size), (0, cut), (min(cut, size - 1), size)][which % 3]


class _Differences:
    """What differs of values that ought to be equal."""

    def __init__(self, vectors: _Vectors):
        self._vectors = vectors
        self.found: list[tuple[_Range, int, float]] = []
        self.apart, self.still = 0.0, 0

    def add(
        self, ranges: Sequence[_Range], own: Sequence[_Range], ours: list[Any], stock: list[Any]
    ) -> None:
        """Compares what is owned of values with those of the whole vectors."""
        for index, (one, other) in enumerate(zip(ours, stock, strict=True)):
            vector = self._vectors.vector_of(index)
            begin, (first, last) = ranges[vector][0], own[vector]
            one, other = one[first - begin : last - begin], other[first:last]
            assert one.shape == other.shape, (ranges[vector], own[vector], one.shape)
            self.still += bool((other == self._vectors.begun[index]).mean() > 0.5)
            if one.tobytes() != other.tobytes():
                self.apart = max(self.apart, every_size.apart(one, other))
                self.found.append((own[vector], index, self.apart))
