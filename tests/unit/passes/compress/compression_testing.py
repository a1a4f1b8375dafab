# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of `compress`: a worker's lookups and updates of marked variables."""

import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, W0, trace
from tf_fuse.explain import rewrite

v1 = tf.compat.v1
MARK = "bfloat16 job/0"


def table(mark=MARK, on=PS0, shape=(9, 2), dtype=tf.float32, name="table"):
    """A handle; `sent` makes an argument of it, with a mark if there is one."""
    with tf.device(on):
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name, name=name)
    if mark:
        handle.op._set_attr("_tf_fuse_compress", tf.compat.v1.AttrValue(s=mark.encode()))
    return handle


def fed(name, shape=(3,), dtype=tf.int32, on=W0):
    with tf.device(on):
        return v1.placeholder(dtype, shape, name=name)


def rows(handle, ids=None, on=PS0, dtype=tf.float32):
    ids = fed("ids") if ids is None else ids
    with tf.device(on):
        return tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=dtype, name="rows")


def gradient(shape=(9, 2), dtype=tf.float32, on=W0):
    with tf.device(on):
        return tf.math.square(fed("given", shape, dtype, on), name="gradient")


def used(value, on=W0):
    with tf.device(on):
        return tf.math.square(value, name="used")


def returned(value, on=W0):
    with tf.device(on):
        return tf.raw_ops.Reshape(tensor=value, shape=[-1], name="returned")


def with_arguments(graph_def):
    """Make arguments of the handles, and a result of what is to be returned."""
    arguments = [node for node in graph_def.node if node.op == "VarHandleOp"]
    for index, node in enumerate(arguments):
        kept = {key: node.attr[key].SerializeToString() for key in node.attr}
        dtype, shape = node.attr["dtype"].type, type(node.attr["shape"].shape)()
        shape.CopyFrom(node.attr["shape"].shape)
        node.attr.clear()
        node.op = "_Arg"
        node.attr["T"].type = tf.resource.as_datatype_enum
        node.attr["index"].i = index
        # TensorFlow gives these to the arguments of a function that runs.
        node.attr["_handle_dtypes"].list.type.append(dtype)
        node.attr["_handle_shapes"].list.shape.add().CopyFrom(shape)
        if "_tf_fuse_compress" in kept:
            node.attr["_tf_fuse_compress"].ParseFromString(kept["_tf_fuse_compress"])
    if any(node.name == "returned" for node in graph_def.node):
        result = graph_def.node.add(name="result", op="_Retval", input=["returned"], device=W0)
        result.attr["T"].type = tf.float32.as_datatype_enum
        result.attr["index"].i = 0
    return graph_def


def rewritten(build):
    return rewrite(with_arguments(trace(build)))


def sent(build):
    """What is sent between tasks, by the operation that sends it: type and the operations."""
    result = rewritten(build)
    found = {}
    for partition in result.before.values():
        nodes = {node.name: node for node in partition.node}
        for node in partition.node:
            if node.op != "_Send" or "_Send" in nodes[node.input[0].split(":")[0]].op:
                continue
            source = nodes[node.input[0].split(":")[0]]
            dtype = tf.as_dtype(node.attr["T"].type).name
            if dtype == "bfloat16":
                origin = source.input[0].split(":")[0]
                found[origin] = f"bfloat16 by {source.op}"
            else:
                found[source.name] = dtype
    return found


def scatter(op, handle, ids, value):
    with tf.device(PS0):
        op(resource=handle, indices=ids, updates=value)


def assign(op, value, on=PS0, **kwargs):
    with tf.device(on):
        op(resource=table(**kwargs), value=value)
