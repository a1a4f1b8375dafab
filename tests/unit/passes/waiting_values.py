# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Values that may wait for another step, and how the pass groups what hangs on them."""

import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, W0, sorted_groups, source, trace, use, v1
from tf_fuse.explain import rewrite


def blocked(make_waiting):
    """Values x, y that hang on nothing, and a, b that hang on what `make_waiting` makes on PS0."""

    def build():
        values = [source(PS0, name) for name in ("x", "y")]
        with tf.device(PS0):
            waiting = make_waiting()
            late = [tf.identity(waiting, name=name) for name in ("a", "b")]
        use(W0, "sum", *values, *late)

    return sorted_groups(rewrite(trace(build)))


def dequeue(queue=None):
    # From outside, since the op that makes a queue counts as one that may wait.
    queue = v1.placeholder(tf.resource, ()) if queue is None else queue
    (taken,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])
    return tf.ensure_shape(taken, [2])
