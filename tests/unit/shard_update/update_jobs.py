# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions made by hand that update two weights, and what is planned of them."""

import tensorflow as tf

from tf_fuse.shard_update.pipeline import shard_update
from tf_fuse.shard_update.plan import PlanOptions
from tf_fuse.shard_update.replicas import Replicas
from tf_fuse.shard_update.verify.verifier import Original

REPLICAS = 2
PREFIX = "parts/"


def reduce_over(x, count=REPLICAS, key=1):
    """The sum over as many replicas."""
    return tf.raw_ops.CollectiveReduceV2(
        input=x, group_size=count, group_key=1, instance_key=key, ordering_token=[],
        merge_op="Add", final_op="Id",
    )  # fmt: skip


class Job:
    """Two weights and a slot, and functions of their gradients."""

    def __init__(self, body, spec=(4, 3)):
        self.w, self.v = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.zeros([5]))
        self.m = tf.Variable(tf.zeros([4, 3]))
        self.a = None

        @tf.function(autograph=False, input_signature=[tf.TensorSpec(spec), tf.TensorSpec([5])])
        def function(dw, dv):
            return body(self, dw, dv)

        self.function = function.get_concrete_function()

    def packed(self, dw, dv, count=REPLICAS):
        """The reduced gradients, as a strategy has them."""
        bucket = tf.concat([tf.reshape(dw, [-1]), tf.reshape(dv, [-1])], 0)
        a, b = tf.split(reduce_over(bucket, count), [12, 5])
        return tf.reshape(a, [4, 3]), b

    def plan(self, rank=0, exact=False):
        """What a replica makes of the function."""
        definition = self.function.function_def
        names = [argument.name for argument in definition.signature.input_arg]
        variables = names[2:]
        library = self.function.graph.as_graph_def().library
        functions = {function.signature.name: function for function in library.function}
        original = Original(definition, self.function.graph, functions.get)
        replicas = Replicas(REPLICAS, {"": rank})
        return shard_update(original, replicas, variables, PREFIX, PlanOptions(exact=exact))


def nodes_of(plan, op):
    """The nodes of an operation in what is run."""
    return [node for node in plan.function.node_def if node.op == op]
