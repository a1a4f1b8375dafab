# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions whose values must not depend on how tensors travel.

Each case makes its variables and functions anew, so that a change of the option applies to it, and
returns a list of values. `Bench.call` runs a function on each worker in turn. Those with branches
and loops are in `flow_cases.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.fuse_recv import flow_cases as fuse_recv_flow_cases  # noqa: F401  (registers its cases)
from tests.cluster.fuse_recv.bench import CASES, MAX_PACKED_BYTES, Bench, case, whole_numbers

__all__ = ["CASES", "Bench"]

# Of cc/base/limits.h, kDefaultMaxFrameBytes.
MAX_FRAME_BYTES = 16 << 20
READS_PER_SERVER = 10

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


@case
def reads(bench: Bench) -> list[Any]:
    """Many variables, read twice; the counters of the second call are those of a steady step."""
    variables = [
        bench.variable(i, whole_numbers("float32", i, (2, 5)))
        for i in range(READS_PER_SERVER * len(bench.ps))
    ]

    @tf.function
    def read():
        return [v * 2.0 for v in variables]

    return bench.call(read) + bench.call(read)


@case
def dtypes(bench: Bench) -> list[Any]:
    """All types that may be copied as bytes."""
    variables = [
        (
            bench.variable(0, whole_numbers(dtype, 2 * i)),
            bench.variable(1, whole_numbers(dtype, 2 * i + 1)),
        )
        for i, dtype in enumerate(DTYPES)
    ]

    @tf.function
    def read():
        return [tf.stack(pair) for pair in variables]

    return bench.call(read)


@case
def shapes(bench: Bench) -> list[Any]:
    """Scalars, tensors without elements, of high rank, and around the limit of a frame."""
    fits = MAX_PACKED_BYTES // 4
    shapes = ((), (0, 3), (2, 0, 5), (1,), (1, 2, 1, 3, 1, 2), (fits,), (fits + 1,), (3, fits))
    variables = [bench.variable(0, whole_numbers("float32", i, s)) for i, s in enumerate(shapes)]

    @tf.function
    def read():
        return [v + 1.0 for v in variables]

    return bench.call(read) + bench.call(read)


@case
def crowded(bench: Bench) -> list[Any]:
    """More than a frame holds: the three largest travel beside it."""
    full = MAX_FRAME_BYTES // MAX_PACKED_BYTES
    elements = MAX_PACKED_BYTES // 4
    sizes = [elements] * 2 + [elements // 2] * 2 + [elements] * full
    variables = [bench.variable(0, whole_numbers("float32", i, (n,))) for i, n in enumerate(sizes)]

    @tf.function
    def read():
        return [x[-2:] + tf.reduce_max(x) for x in map(tf.convert_to_tensor, variables)]

    return bench.call(read, on=bench.workers[:1])


@case
def strings(bench: Bench) -> list[Any]:
    """Strings share a frame with numbers; one is too long for it."""
    texts = [bench.variable(0, [f"text {i}", "", "ä\0b"]) for i in range(2)]
    texts += [bench.variable(0, tf.constant(t)) for t in ("scalar", [[""] * 2] * 3)]
    texts.append(bench.variable(0, tf.constant([], tf.string)))
    texts.append(bench.variable(0, ["x" * MAX_PACKED_BYTES]))
    numbers = [bench.variable(0, whole_numbers("float32", i)) for i in range(2)]

    @tf.function
    def read():
        return [tf.strings.join([t, "!"]) for t in texts], [n - 1.0 for n in numbers]

    return bench.call(read)


@case
def rare_types(bench: Bench) -> list[Any]:
    """All other numbers that TensorFlow 2.21 has, and variants: lists, a ragged one, optionals."""
    numbers = [bench.variable(0, whole_numbers("float32", i, (2, 4)) / 16.0) for i in range(4)]
    text = bench.variable(0, [["a", ""], ["b", "cd"]])
    casts = [tf.dtypes.as_dtype(t) for t in ("float8_e5m2", "float8_e4m3fn")]
    # tf.cast knows no other; of these there are only constants, which tf.reshape can take.
    uncast = [
        *("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz"),
        *("float4_e2m1fn", "int2", "uint2"),
    ]
    constants = [
        np.float32([[0, 1, 1.5, 0.5], [2, 3, -1, 0]]).astype(tf.dtypes.as_dtype(t).as_numpy_dtype)
        for t in uncast
    ]
    quantized = [tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32]

    @tf.function
    def read(shape):
        with tf.device(bench.server(0)):
            small = [tf.cast(numbers[0], dtype) for dtype in casts]
            others = [tf.constant(x) for x in constants]
            # What makes tf.experimental.Optional; its methods would stay with it.
            optionals = [
                tf.raw_ops.OptionalFromValue(components=[numbers[1] * 3.0]),
                tf.raw_ops.OptionalNone(),
            ]
            bytes_ = tf.cast(numbers[0] * 16.0, tf.int8)
            nibbles = [tf.cast(bytes_, tf.dtypes.as_dtype(t)) for t in ("int4", "uint4")]
            coded = [tf.quantization.quantize(numbers[1], 0.0, 6.0, t)[0] for t in quantized]
            lists = [
                tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=x.shape[1:])
                for x in (numbers[2] * 2.0, tf.identity(text))
            ]
            empty = tf.raw_ops.EmptyTensorList(
                element_shape=[2], max_num_elements=3, element_dtype=tf.float32
            )
            ragged = tf.RaggedTensor.from_row_lengths(tf.reshape(numbers[3], [-1]), [5, 0, 3])
            coded_ragged = tf.raw_ops.RaggedTensorToVariant(
                rt_nested_splits=[ragged.row_splits],
                rt_dense_values=ragged.values,
                batched_input=True,
            )
        stacked = [
            tf.raw_ops.TensorListStack(input_handle=x, element_shape=x_shape, element_dtype=dtype)
            for x, x_shape, dtype in zip(lists, ([4], [2]), (tf.float32, tf.string), strict=True)
        ]
        splits, values = tf.raw_ops.RaggedTensorFromVariant(
            encoded_ragged=coded_ragged,
            input_ragged_rank=0,
            output_ragged_rank=1,
            Tvalues=tf.float32,
            Tsplits=tf.int64,
        )
        return (
            [tf.cast(x, tf.float32) for x in small],
            [tf.reshape(x, shape) for x in others],
            tf.raw_ops.OptionalGetValue(
                optional=optionals[0], output_types=[tf.float32], output_shapes=[[2, 4]]
            ),
            [tf.raw_ops.OptionalHasValue(optional=x) for x in optionals],
            [tf.cast(x, tf.int8) for x in nibbles],
            [tf.cast(x, tf.int32) for x in coded],
            stacked,
            tf.raw_ops.TensorListLength(input_handle=empty),
            splits,
            values,
        )

    return bench.call(read, tf.constant([4, 2]))


@case
def gradients(bench: Bench) -> list[Any]:
    """Tables and weights, read, and updated by scatter_sub, assign_sub and assign."""
    servers = range(2 * len(bench.ps))
    tables = [bench.variable(i, whole_numbers("float32", i, (7, 4)) / 9.0) for i in servers]
    weights = [bench.variable(i, whole_numbers("float32", 50 + i, (4, 3)) / 11.0) for i in servers]
    last = [bench.variable(i, tf.zeros([4, 3])) for i in servers]
    ids = tf.constant([0, 3, 3, 6])
    labels = whole_numbers("float32", 99, (4, 3)) / 7.0

    @tf.function
    def step(ids, labels):
        with tf.GradientTape() as tape:
            rows = [tf.gather(t, ids) for t in tables]
            out = tf.add_n([tf.matmul(r, w) for r, w in zip(rows, weights, strict=True)])
            loss = tf.reduce_sum(tf.square(tf.tanh(out) - labels))
        grads = tape.gradient(loss, [*tables, *weights])
        for table, grad in zip(tables, grads[: len(tables)], strict=True):
            table.scatter_sub(tf.IndexedSlices(0.1 * grad.values, grad.indices))
        for weight, kept, grad in zip(weights, last, grads[len(tables) :], strict=True):
            weight.assign_sub(0.1 * grad)
            kept.assign(grad)
        return loss

    losses = bench.call(step, ids, labels) + bench.call(step, ids, labels)
    return losses + [v.numpy() for v in (*tables, *weights, *last)]


@case
def snapshots(bench: Bench) -> list[Any]:
    """Values that are sent and then written over on the server, before and after the sending."""
    dense = [bench.variable(0, whole_numbers("float32", i)) for i in range(4)]
    tables = [bench.variable(0, whole_numbers("float32", 10 + i, (5, 2))) for i in range(2)]

    @tf.function
    def step():
        before = [v.read_value() for v in (*dense, *tables)]
        for v in dense[:2]:
            v.assign_add([1.0, 2.0, 3.0])
        dense[2].assign([7.0, 8.0, 9.0])
        for table in tables:
            table.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 4])))
        after = [v.read_value() for v in (*dense, *tables)]
        return [b * 2.0 for b in before], [a * 3.0 for a in after]

    return bench.call(step) + bench.call(step)


@case
def spread(bench: Bench) -> list[Any]:
    """The same values go to the worker and to the other servers, and from there to the worker."""
    variables = [bench.variable(0, whole_numbers("float32", i)) for i in range(4)]
    others = [bench.server(i) for i in range(1, len(bench.ps))]

    @tf.function
    def run():
        values = [v.read_value() for v in variables]
        results = [v * 2.0 for v in values]
        for device in others:
            with tf.device(device):
                results += [v + 1.0 for v in values] + [tf.add_n(values)]
        return [r * 1.0 for r in results]

    return bench.call(run)


@case
def sums(bench: Bench) -> list[Any]:
    """Each operation takes several tensors of a server: plain, in branches, and in a loop."""
    left = [bench.variable(0, whole_numbers("float32", i)) for i in range(6)]
    right = [bench.variable(1, whole_numbers("float32", 10 + i)) for i in range(6)]

    def halves(variables):
        read = [v.read_value() for v in variables]
        return tf.add_n(read[:3]) - 2.0 * tf.add_n(read[3:])

    @tf.function
    def plain():
        return halves(left), halves(right)

    @tf.function
    def branch(flag):
        return tf.cond(flag, lambda: halves(left), lambda: halves(right))

    @tf.function
    def loop(n):
        def body(i, x):
            return i + 1, x + halves(left) * halves(right)

        return tf.while_loop(lambda i, _: i < n, body, (0, tf.zeros([3])))

    values = bench.call(plain)
    values += bench.call(branch, tf.constant(True)) + bench.call(branch, tf.constant(False))
    return values + bench.call(loop, tf.constant(3))


@case
def kept_values(bench: Bench) -> list[Any]:
    """Variables that take over what was received; they must not keep the frame."""
    kept = [bench.variable(0, tf.zeros([8])) for _ in range(3)]
    added = bench.variable(0, tf.zeros([8]))

    @tf.function
    def store(x):
        for i, v in enumerate(kept):
            v.assign(x * float(i + 1))
        added.assign_add(x * 4.0)
        return x * 5.0

    values = bench.call(store, whole_numbers("float32", 1, (8,)))
    values += bench.call(store, whole_numbers("float32", 2, (8,)))
    return values + [v.numpy() for v in (*kept, added)]


@case
def nested(bench: Bench) -> list[Any]:
    """Functions in functions, called twice with different arguments."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(4)]

    @tf.function
    def inner(scale):
        return tf.add_n([v * scale for v in variables])

    @tf.function
    def middle(scale):
        return inner(scale) + inner(scale + 1.0)

    @tf.function
    def outer(scale):
        return middle(scale), [v - inner(scale) for v in variables]

    return bench.call(outer, tf.constant(2.0))


@case
def resource_handles(bench: Bench) -> list[Any]:
    """Handles of variables cross to the worker, for a call that is not inlined."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(6)]

    @tf.function(experimental_attributes={"_noinline": True})
    def inner(scale):
        for v in variables[:2]:
            v.assign_add(scale * tf.ones([3]))
        return [v * scale for v in variables]

    @tf.function
    def outer(scale):
        values = inner(scale)
        return values, [x - 1.0 for x in values]

    values = bench.call(outer, tf.constant(2.0)) + bench.call(outer, tf.constant(3.0))
    return values + [v.numpy() for v in variables]


@case
def compiled(bench: Bench) -> list[Any]:
    """Islands that XLA compiles, fed with what was received, inside a step that is not compiled."""
    weights = [bench.variable(i, whole_numbers("float32", i, (4, 4)) / 8.0) for i in range(6)]

    @tf.function(jit_compile=True)
    def island(x, w):
        return tf.reduce_sum(tf.nn.relu(tf.matmul(x, w) - 2.0), axis=1, keepdims=True) + w

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            values = [tf.convert_to_tensor(w) for w in weights]
            tape.watch(values)
            for value in values:
                x = island(x, value)
        gradients = tape.gradient(x, values)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.125 * tf.round(gradient))
        return x, gradients

    x = whole_numbers("float32", 7, (4, 4)) / 16.0
    return bench.call(step, x) + [w.numpy() for w in weights]


@case
def local_dataset(bench: Bench) -> list[Any]:
    """A tf.data iterator that the function makes on the worker, over values that it received."""
    variables = [bench.variable(i, whole_numbers("int64", i)) for i in range(4)]

    @tf.function
    def step():
        first = tf.stack([tf.convert_to_tensor(v) for v in variables])
        total = tf.zeros([3], tf.int64)
        for row in tf.data.Dataset.from_tensor_slices(first).map(lambda r: r * 2):
            total += row
        return total, [v - total for v in variables]

    return bench.call(step)


@case
def python_function(bench: Bench) -> list[Any]:
    """A tf.py_function runs in the coordinator's process, which receives like a worker."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(4)]
    seen = []

    def look(*values):
        seen.append(len(values))
        return tf.add_n(values)

    @tf.function
    def run():
        total = tf.py_function(look, [v * 2.0 for v in variables], tf.float32)
        total.set_shape([3])
        return total, [v + total for v in variables]

    values = bench.call(run, on=["chief:0"])
    return [*values, np.array(seen)]


@case
def scheduled(bench: Bench) -> list[Any]:
    """ClusterCoordinator.schedule with a dataset per worker; sums of whole numbers commute."""
    variables = [bench.variable(i, whole_numbers("int64", i)) for i in range(4)]
    total = bench.variable(1, tf.zeros([3], tf.int64))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(bench.strategy)

    @tf.function
    def step(iterator):
        x = tf.reduce_sum(next(iterator))
        total.assign_add(x * tf.add_n([v + 0 for v in variables]))
        return x

    def dataset():
        return tf.data.Dataset.from_tensors(tf.constant([1, 2], tf.int64)).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    with bench.counting():
        results = [coordinator.schedule(step, args=(iterator,)) for _ in range(6)]
        coordinator.join()
    return [*(result.fetch() for result in results), total.numpy()]
