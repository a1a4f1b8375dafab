# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps of the model of `everything.py`: plain ones, some that wait at a gate, some that fail."""

from tests.fault import coordinator

# "spread": without a partitioner, and with the update of the kernel spread over the servers.
ON = ("on", "spread")
_GATED = "/job:ps/replica:0/task:1"


class Steps:
    """The model, and its steps.

    Attributes:
      model: an `Everything`.
      plain: a step.
      gated: one that waits on the second server, between its forward pass and its gradients.
      entered: how many of these have begun to wait.
      queue: from which they take what they wait for.
    """

    def __init__(self, resolver, mode):
        import tensorflow as tf

        from tests.fault import everything

        is_spread = mode == "spread"
        self.model = model = everything.Everything(resolver, mode in ON, is_spread=is_spread)
        with model.strategy.scope(), tf.device("/job:ps/task:1"):
            self.entered = tf.Variable(0, trainable=False, name="entered")
        with tf.device(_GATED):
            self.queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]], shared_name="gate")

        def waits(ids):
            with tf.device(_GATED), tf.control_dependencies([self.entered.assign_add(1)]):
                gate = self.queue.dequeue()
            loss, gradients = model.losses(ids, gate)
            model.apply(gradients)
            return loss

        self.plain, self.gated = model.plain(), model.function(waits)

    def writes_nowhere(self):
        """A step whose gradient of the table has a row that does not exist."""
        import tensorflow as tf

        model = self.model

        def body(ids):
            loss, (table, *others) = model.losses(ids)
            shape = table.dense_shape
            table = tf.IndexedSlices(tf.ones([2, model.table.output_dim]), [0, 100_000], shape)
            model.apply([table, *others])
            return loss

        return model.function(body)

    def fails_beside(self):
        """A step with an operation on a server that fails, and does not wait for anything."""
        import tensorflow as tf

        model = self.model

        def body(ids):
            loss, gradients = model.losses(ids)
            with tf.device(_GATED):
                text = tf.strings.join([tf.strings.as_string(ids), "x"])
                loss += tf.reduce_sum(tf.strings.to_number(text))
            model.apply(gradients)
            return loss

        return model.function(body)

    def has_entered(self, since):
        """Waits until a gated step waits; whether one does."""
        return bool(coordinator.wait_until(lambda: int(self.entered.numpy()) > since))


def counts(model, plain, ids):
    """What became of a step: operations on servers, assignments that are left, gathers there."""
    from tensorflow.python.eager import context

    from tf_fuse.shard_update import interception

    found = [one.outline for one in interception.fuser_of(context.context()).decisions]
    with_updates = next(one for one in found if one.clusters)
    ops = [op.type for op in plain.get_concrete_function(ids).graph.get_operations()]
    return {
        "fused": [len(with_updates.clusters), len(with_updates.left)],
        "gathers": ops.count("ResourceGather"),
    }
