# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of `cases.py`: many tensors, of all types and shapes, and more than a frame holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.fuse_recv.bench import MAX_PACKED_BYTES, Bench, case, whole_numbers

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
