# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps whose weights may be gathered right before their first use, and what is planned of them."""

import tensorflow as tf

from tests.unit.shard_update.update_jobs import REPLICAS, reduce_over
from tf_fuse.shard_update.pipeline import shard_update
from tf_fuse.shard_update.plan import PlanOptions
from tf_fuse.shard_update.replicas import Replicas
from tf_fuse.shard_update.verify.verifier import Original, verify


class Job:
    """Two weights and a slot, and a step of their gradients."""

    def __init__(self, body, narrow=False, rank=0, groups=1):
        self.w, self.v = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.zeros([5]))
        self.m, self.s = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.ones([12]))

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([4, 3]), tf.TensorSpec([5])])
        def function(x, y):
            return body(self, x, y)

        concrete = self.concrete = function.get_concrete_function()
        names = [argument.name for argument in concrete.function_def.signature.input_arg]
        by_handle = {id(t): n for n, t in zip(names[2:], concrete.captured_inputs, strict=True)}
        self.name_of = {
            key: by_handle.get(id(getattr(self, key).handle)) for key in ("w", "v", "m", "s")
        }
        library = {f.signature.name: f for f in concrete.graph.as_graph_def().library.function}
        self.original = Original(concrete.function_def, concrete.graph, library.get)
        mirrored = [n for key, n in self.name_of.items() if n]
        self.plan = shard_update(
            self.original,
            Replicas(REPLICAS, {"": rank}, groups),
            mirrored,
            "parts/",
            PlanOptions(first_use=True, narrow=narrow),
        )
        self.rewritten = self.plan.function

    def verify(self):
        """What the verifier says."""
        return verify(self.original, self.rewritten, self.plan.shards, self.plan.functions)

    def of(self, op, variable=""):
        """The new function's nodes of an operation, of the part of a variable if one is named."""
        handle = f"tf_fuse_shard/{self.name_of.get(variable)}:resource:0"
        nodes = [node for node in self.rewritten.node_def if node.op == op]
        return [node for node in nodes if not variable or node.input[0] == handle]

    def gather_of(self, variable):
        """Where a weight is gathered."""
        clusters = [cluster for bucket in self.plan.buckets for cluster in bucket.clusters]
        name = self.name_of[variable]
        (found,) = [f for f in clusters if f.weights == (name,) and f.reason is None]
        return found.gather


def update_both(job, dw, dv, packed=True):
    """Momentum for one weight, a decay for the other."""
    if packed:
        both = reduce_over(tf.concat([tf.reshape(dw, [-1]), dv], 0))
        dw, dv = tf.split(both, [12, 5])
        dw = tf.reshape(dw, [4, 3])
    job.m.assign(0.9 * job.m + dw)
    job.v.assign_sub(0.01 * job.v)
    job.w.assign_sub(0.1 * job.m)
    job.v.assign_sub(0.1 * dv)


def plain(job, x, y):
    """A step that reads both weights, and then updates them."""
    loss = tf.cumsum(job.w) * x, tf.cumsum(job.v) * y
    update_both(job, x + job.w, y + job.v)
    return loss


def two_buckets(job, x, y):
    """A step of two all-reduces, whose updates read each other's weights."""
    before = tf.raw_ops.ReadVariableOp(resource=job.w.handle, dtype=tf.float32)
    loss = tf.cumsum(before), tf.cumsum(job.m)
    # As many elements, and of two buckets: one is rewritten when the other one has been.
    job.w.assign_sub(reduce_over(x, key=1) * job.m)
    job.m.assign_sub(reduce_over(x + loss[1], key=2) * before)
    return loss
