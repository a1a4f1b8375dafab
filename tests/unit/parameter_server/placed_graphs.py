# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphs whose variables a strategy places, and where these are then."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf


def placed_graph(strategy, build):
    """Devices of the variables of a graph, by name, and of all of its operations."""
    setter = tf.compat.v1.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)
    with tf.Graph().as_default() as graph, tf.compat.v1.device(setter):
        build()
    ops = {op.name: op.device for op in graph.get_operations()}
    kinds = ("VarHandleOp", "VariableV2")
    return {op.name: op.device for op in graph.get_operations() if op.type in kinds}, ops


def sizes(resource=True, order=1):
    def build():
        for size in (1000, 999, 10, 9)[::order]:
            with tf.compat.v1.variable_scope(f"s{size}"):
                tf.compat.v1.get_variable("v", [size], use_resource=resource)

    return build
