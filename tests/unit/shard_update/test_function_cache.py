# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is kept about a function goes with it."""

import gc
import os
import types
import weakref

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from tensorflow.python.eager import context as context_module

from tests.unit.fuse_update.fused_updates import Job
from tf_fuse.cluster import local_cluster
from tf_fuse.monitoring.weight_update_counters import weight_update_counters
from tf_fuse.shard_update import interception


def _text(name):
    return name if isinstance(name, str) else name.decode()


def test_what_was_decided_goes_with_the_function():
    """Of a function that is traced again, what it calls, and its rewritten functions."""
    context = context_module.context()
    job = Job()

    @tf.function(autograph=False)
    def inner(gradient):
        job.update(gradient)
        return tf.reduce_sum(gradient)

    def step(gradient, scale, inner=inner):
        return inner(gradient)

    function = tf.function(step, autograph=False)
    fuser = interception.fuser_of(context)
    gc.collect()
    before, functions = fuser.decisions, set(context.list_function_names())
    counted = weight_update_counters()["updates_fused"]
    tf.config.optimizer.set_experimental_options({"fuse_weight_update": True})
    for scale in range(3):  # (A number is a trace of its own.)
        function(tf.ones((5, 7, 3)), float(scale))
    tf.config.optimizer.set_experimental_options({"fuse_weight_update": False})
    made = [one for one in fuser.decisions if not any(one is other for other in before)]
    assert sum(len(one.outline.clusters) for one in made) == 1
    described = [weakref.ref(part) for one in made for part in (one, one.outline)]
    added = set(context.list_function_names()) - functions
    rewritten = {one for one in added if "__tf_fuse_fused" in _text(one)}
    assert rewritten
    updates = weight_update_counters()["updates_fused"]
    assert updates > counted
    del function, inner, step, made
    gc.collect()
    assert [one() for one in described] == [None] * len(described)
    assert not rewritten & set(context.list_function_names())
    assert weight_update_counters()["updates_fused"] == updates  # Counters do not fall.


def test_what_was_decided_goes_with_functions_of_a_cluster_that_has_ended(monkeypatch):
    """TensorFlow cannot remove those that its tasks have; all others go as without a cluster."""
    context = context_module.context()
    job = types.SimpleNamespace(tasks={0: "localhost:1"})
    connected = types.SimpleNamespace(cluster=types.SimpleNamespace(job=[job]))
    fuser, weights = interception.fuser_of(context), Job()
    gc.collect()
    before, functions = len(fuser.decisions), set(context.list_function_names())

    def made():
        monkeypatch.setattr(context, "_server_def", None)  # (Such a call has no servers.)

        def step(gradient):
            weights.update(gradient)
            return tf.reduce_sum(gradient)

        function = tf.function(step, autograph=False)
        tf.config.optimizer.set_experimental_options({"fuse_weight_update": True})
        function(tf.ones((5, 7, 3)))
        tf.config.optimizer.set_experimental_options({"fuse_weight_update": False})
        monkeypatch.setattr(context, "_server_def", connected)
        del step
        return function

    sent = made()
    names = set(context.list_function_names()) - functions
    assert len(fuser.decisions) == before + 1 and len(names) >= 2
    try:
        local_cluster._forget_tasks({"localhost:1"})
        later = made()
        assert len(fuser.decisions) == before + 2
        del later
        gc.collect()
        assert len(fuser.decisions) == before + 1
        assert set(context.list_function_names()) - functions == names
        del sent
        gc.collect()
        assert len(fuser.decisions) == before
        assert set(context.list_function_names()) - functions == names
        later = made()
        context._server_def = None
        del later
        gc.collect()
        assert set(context.list_function_names()) == functions
    finally:
        for one in ("remove_function", "_tf_fuse_ended", "_tf_fuse_sent"):
            vars(context).pop(one, None)


def test_what_was_decided_of_replicas_goes_with_the_function():
    context = context_module.context()
    updates = interception.updates_of(context)
    updates._is_one_replica = False  # (It is said once.)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        weight = tf.Variable(tf.ones([4]))
    function = tf.function(lambda: weight.assign_add(tf.ones([4])), autograph=False)
    tf.config.optimizer.set_experimental_options({"shard_weight_update": True})
    function()
    tf.config.optimizer.set_experimental_options({"shard_weight_update": False})
    name = _text(function.get_concrete_function().name)
    (made,) = [one for one in updates.decisions if one.function == name]
    left = weight_update_counters()["functions_left"]["no_group"]
    described = weakref.ref(made)
    del function, made
    gc.collect()
    assert described() is None
    assert name not in [one.function for one in updates.decisions]
    assert weight_update_counters()["functions_left"]["no_group"] == left >= 1
