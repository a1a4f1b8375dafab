# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of fuse_lookups_combine: graphs of lookups, and what travels."""

import re

import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, W0, nodes_of, trace
from tf_fuse.explain import rewrite

raw = tf.raw_ops
SPARSE = ["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"]
# Rows are larger than what travels besides for each.
WIDTH = 8


def table(on=PS0, name="table", dtype=tf.float32, width=WIDTH):
    with tf.device(on):
        return raw.VarHandleOp(dtype=dtype, shape=[9, width], shared_name=name, name=name)


def placeholder(name, shape=(None,), dtype=tf.int32, on=W0):
    with tf.device(on):
        return tf.compat.v1.placeholder(dtype, shape, name=name)


def gather(handle, ids, on=PS0, dtype=tf.float32, name="rows"):
    with tf.device(on):
        return raw.ResourceGather(resource=handle, indices=ids, dtype=dtype, name=name)


def use(value, on=W0, name="used"):
    with tf.device(on):
        return tf.identity(tf.nn.relu(value), name=name)


def scatter(handle, ids, value, on=PS0, name="scatter"):
    with tf.device(on):
        raw.ResourceScatterSub(resource=handle, indices=ids, updates=value, name=name)


def look_up(ids="ids", on=PS0, name="table", **options):
    return gather(table(on, name, **options), placeholder(ids), on, name=f"rows_of_{name}")


def places(number=""):
    return placeholder(f"places{number}"), placeholder(f"segments{number}", dtype=tf.int64)


def plain_name(node):
    """Without the number that makes it the only one."""
    return re.sub(r"/_\d+(?=:|$)", "", node)


def rewritten(build, **options):
    """The partitions, without what nothing uses."""
    graph = trace(build)
    ends = [n.name for n in graph.node if n.op.startswith("ResourceScatter") or "used" in n.name]
    graph = tf.compat.v1.graph_util.extract_sub_graph(graph, ends)
    return rewrite(graph, fuse_lookups_combine=True, **options).before


def sent(partition):
    return sorted({plain_name(send.input[0]) for send in nodes_of(partition, "_Send")})


def travels(build, servers=(PS0,), **options):
    """What the worker sends, and what the servers do."""
    partitions = rewritten(build, **options)
    return sent(partitions[W0]), sorted(name for on in servers for name in sent(partitions[on]))


def combine(rows, op="SparseSegmentSum", on=W0, name="sums", number=""):
    chosen, segments = places(number)
    with tf.device(on):
        return getattr(raw, op)(data=rows, indices=chosen, segment_ids=segments, name=name)


def train(change=lambda g: g, lookup=combine, on=PS0, name="table"):
    """A lookup, and a step of SGD with the gradient of the sums' squares."""
    handle, ids = table(on, name), placeholder("ids")
    rows = gather(handle, ids, on, name=f"rows_of_{name}")
    with tf.device(W0):
        kept = tf.identity(rows, name="kept")
        sums = lookup(kept)
        loss = tf.identity(tf.square(sums), name="loss")
        (gradient,) = tf.gradients(loss, kept)
        changed = change(tf.convert_to_tensor(gradient))
    return handle, ids, changed
