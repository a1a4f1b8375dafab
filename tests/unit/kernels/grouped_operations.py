# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run operations as a group; ids and types for tables, and texts of errors."""

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_fuse import _native

TYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.complex64]
IDS = {
    "few": [2, 0, 2, 2, 4],
    "none": [],
    "one": [3],
    "matrix": [[0, 1], [1, 4]],
    "many": [i * 7 % 5 for i in range(1023)],
    "in parallel": [i % 5 for i in range(1024)],
    "negative": [1, -1, 2],
    "too large": [1, 5, 2],
}


def run(nodes, inputs=(), results=(), types=()):
    body = graph_pb2.GraphDef(node=nodes)
    return _native.load().tf_fuse_operation_group(
        inputs=list(inputs), body=body.SerializeToString(), results=results, Tresults=types
    )


def text_of(error):
    """Without the node or the function that was called, and the variable, which groups name."""
    text = error.message.split(" [Op:")[0].split("[[")[0].split("}} ")[-1]
    return text.split(" (variable '")[0].strip()
