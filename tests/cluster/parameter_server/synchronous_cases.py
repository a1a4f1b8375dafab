# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Synchronous training on parameter servers: `python synchronous_cases.py MODE`.

MODE is of `coordinator.Job`; "on" has the option `shard_weight_update` too.
"""

import sys

from tests.fault import coordinator

WORKERS, SERVERS, STEPS = 2, 2, 3
# Kernels and biases, which stock TensorFlow puts on one server each.
SHAPES = [[64, 64], [64]] * 4


def main(mode):
    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job(mode, WORKERS, SERVERS)
    if mode != "stock":
        from tf_fuse import parameter_server

        tf.config.optimizer.set_experimental_options({"shard_weight_update": True})

    def task(device):
        return tf.DeviceSpec.from_string(device).task

    def sizes_of(pairs):
        """Elements by server."""
        sums = [0] * SERVERS
        for device, elements in pairs:
            sums[task(device)] += elements
        return sums

    def values():
        rng = np.random.default_rng(5)
        return [rng.standard_normal(shape).astype("float32") for shape in SHAPES]

    def loop():
        """Workers add up gradients in accumulators on the servers; then all are applied."""
        strategy = job.strategy
        with strategy.scope():
            weights = [tf.Variable(value) for value in values()]
            sums = []
            for weight in weights:
                with strategy.extended.colocate_vars_with(weight):
                    sums.append(tf.Variable(tf.zeros(weight.shape), trainable=False))
            optimizer = keras.optimizers.Adam(0.01)
            optimizer.build(weights)

        @tf.function
        def accumulate(scale):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(tf.sin(scale * weight)) for weight in weights])
            for one, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
                one.assign_add(gradient)
            return loss

        @tf.function
        def apply():
            def replica():
                means = [one / float(WORKERS) for one in sums]
                optimizer.apply_gradients(zip(means, weights, strict=True))
                for one in sums:
                    one.assign(tf.zeros(one.shape))

            strategy.run(replica)

        losses = []
        for _ in range(STEPS):
            found = [job.coordinator.schedule(accumulate, args=(float(i + 1),)) for i in range(2)]
            job.coordinator.join()
            job.call(apply)
            losses.append([one.fetch() for one in found])
        state = [*weights, *(v.value for v in optimizer.variables if v.value.shape.rank > 0)]
        return {
            "losses": coordinator.exact(losses),
            "values": coordinator.exact([v.numpy() for v in [*weights, *sums]]),
            "state": sizes_of((v.device, v.shape.num_elements()) for v in state),
            "sums": sizes_of((v.device, v.shape.num_elements()) for v in sums),
            "beside": [one.device == w.device for one, w in zip(sums, weights, strict=True)],
        }

    def session():
        """`SyncReplicasOptimizer`, whose steps this process takes for all workers."""
        from tensorflow.python.training import sync_replicas_optimizer

        v1 = tf.compat.v1
        spec = job.cluster.cluster_spec
        only = {"ps": spec["ps"], "worker": spec["worker"]}
        with tf.Graph().as_default() as graph:
            chosen = {}
            if mode != "stock":
                chosen["ps_strategy"] = parameter_server.PsStrategy(SERVERS)
            setter = v1.train.replica_device_setter(cluster=tf.train.ClusterSpec(only), **chosen)
            with v1.device(setter):
                step = v1.train.get_or_create_global_step()
                weights = [
                    v1.get_variable(f"w{i}", initializer=value, use_resource=True)
                    for i, value in enumerate(values())
                ]
                loss = tf.add_n([tf.reduce_sum(tf.sin(weight)) for weight in weights])
                inner = v1.train.AdamOptimizer(0.01)
                optimizer = sync_replicas_optimizer.SyncReplicasOptimizer(
                    inner, replicas_to_aggregate=WORKERS, total_num_replicas=WORKERS
                )
                optimizer.minimize(loss, global_step=step)
                begin = [v1.global_variables_initializer(), v1.local_variables_initializer()]
            adds = [op for op in graph.get_operations() if "AccumulatorApplyGradient" in op.type]
            (update,) = optimizer._chief_queue_runner.enqueue_ops
            slots = [inner.get_slot(w, name) for w in weights for name in ("m", "v")]
            scheme = "grpc" if mode == "stock" else "grpc+fuse"
            with v1.Session(f"{scheme}://{spec['worker'][0]}") as run:
                run.run(begin)
                run.run(optimizer.chief_init_op)
                for _ in range(STEPS):
                    # As each worker does in its step, and then the chief in its thread.
                    run.run(optimizer.local_step_init_op)
                    for _ in range(WORKERS):
                        run.run(adds)
                    run.run(update)
                result = run.run([*weights, *slots])
                steps = int(run.run(step))
            accumulators = [op for op in graph.get_operations() if op.type.endswith("Accumulator")]
            return {
                "values": coordinator.exact(result),
                "steps": steps,
                "state": sizes_of((v.device, v.shape.num_elements()) for v in [*weights, *slots]),
                "sums": sizes_of(
                    (op.device, tf.TensorShape(op.get_attr("shape")).num_elements())
                    for op in accumulators
                ),
            }

    coordinator.finish({"loop": loop, "session": session})


if __name__ == "__main__":
    main(sys.argv[1])
