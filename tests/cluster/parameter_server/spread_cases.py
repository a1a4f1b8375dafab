# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A Keras model that one kernel dominates, stock and with its update spread or not.

Arguments: "stock" or "on", the number of servers, a folder of checkpoints, and the bottlenecks with
which these are restored.
"""

import sys
from pathlib import Path

from tests.fault import coordinator


def main(mode, servers, folder, restores):
    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job(mode, 1, servers)
    resolver = job.cluster.resolver()
    if mode != "stock":
        from tf_fuse import parameter_server

        tf.config.optimizer.set_experimental_options(
            {"shard_weight_update": True, "do_fuse_recv": True}
        )

    def server(variable):
        return tf.DeviceSpec.from_string(variable.device).task

    def make(optimizer_of):
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [keras.layers.Dense(61, name="big"), keras.layers.Dense(3, name="small")]
        )
        model.build((None, 67))
        weights = model.trainable_variables
        if mode != "stock" and optimizer_of is momentum:  # (The others take whole variables.)
            weights = parameter_server.pieces(weights)
        optimizer = optimizer_of()
        optimizer.build(weights)
        return model, optimizer, weights

    def adam():
        return keras.optimizers.Adam(0.01, amsgrad=True)

    def momentum():
        return keras.optimizers.SGD(0.01, momentum=0.9)

    def lamb():
        return keras.optimizers.Lamb(0.01)

    def strategy_of(bottleneck):
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        if mode != "stock":
            link = {"compute": 1e12, "wire": 1e3}[bottleneck]
            costs = parameter_server.Costs(
                link_bytes_per_s=link, update_s=0.0, piece_s=0.0, memory_bytes_per_s=1e12
            )
            parameter_server.set_costs(strategy, costs)
        return strategy

    def built(bottleneck, optimizer_of):
        strategy = strategy_of(bottleneck)
        build = parameter_server.build if mode != "stock" else lambda function: function()
        with strategy.scope():
            return strategy, *build(lambda: make(optimizer_of))

    def train(strategy, model, optimizer, weights, steps):
        def replica():
            x = tf.reshape(tf.cast(tf.range(4 * 67) % 11, tf.float32), [4, 67]) / 11.0
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        @tf.function
        def step():
            return strategy.run(replica)

        loop = tf.distribute.coordinator.ClusterCoordinator(strategy)
        losses = []
        for _ in range(steps):
            result = loop.schedule(step)
            loop.join()
            losses.append(float(result.fetch()))
        return coordinator.exact(losses)

    def checkpoint(model, optimizer):
        return tf.train.Checkpoint(model=model, optimizer=optimizer)

    def training(bottleneck, optimizer_of):
        """Trains, saves, and goes on; other runs restore it."""

        def run():
            strategy, model, optimizer, weights = built(bottleneck, optimizer_of)
            losses = train(strategy, model, optimizer, weights, 3)
            name = f"{optimizer_of.__name__}-{mode}-{bottleneck}-{servers}"
            path = checkpoint(model, optimizer).save(str(Path(folder) / name))
            saved = {
                key: [*shape]
                for key, shape in tf.train.list_variables(path)
                if not key.startswith("_") and "model/" not in key
            }
            report = parameter_server.placement_report(strategy) if mode != "stock" else None
            (kernel,) = (v.value for v in model.trainable_variables if v.shape == (67, 61))
            parts = list(getattr(kernel, "variables", [kernel]))
            return {
                "losses": losses,
                "then": train(strategy, model, optimizer, weights, 2),
                "kernel": [[server(part), part.shape.as_list()] for part in parts],
                "slots": [
                    [server(slot.value), slot.shape[0]]
                    for slot in optimizer.variables
                    if len(slot.shape) == 2 and slot.shape[1] == 61
                ],
                "saved": saved,
                "report": report,
                "updates": _updates() if mode != "stock" else None,
            }

        return run

    def _updates():
        import tf_fuse

        function = tf_fuse.weight_update_report()["operations"][-1]
        return [function["updates"], len(function["left"])]

    def restored(bottleneck, optimizer_of):
        """What a checkpoint of each other run so far gives."""

        def run():
            results = {}
            for index in sorted(Path(folder).glob(f"{optimizer_of.__name__}-*-1.index")):
                strategy, model, optimizer, weights = built(bottleneck, optimizer_of)
                path = str(index)[: -len(".index")]
                status = checkpoint(model, optimizer).restore(path)
                status.assert_existing_objects_matched()
                results[index.stem] = train(strategy, model, optimizer, weights, 2)
            return results

        return run

    def not_asked():
        """A program whose optimizer needs whole variables gets no pieces."""
        strategy, model, _, weights = built("compute", lamb)
        spread = parameter_server.placement_report(strategy)["plans"][0]["spread"]
        return {
            "count": len(weights),
            "verdicts": [one["verdict"] for one in spread],
            "whole": bool(np.all(np.isfinite(np.asarray(model.trainable_variables[0])))),
        }

    cases = {}
    for optimizer_of in (adam, momentum):
        name = optimizer_of.__name__
        for bottleneck in ("compute", "wire") if mode != "stock" else ("compute",):
            cases[f"{name}_{bottleneck}"] = training(bottleneck, optimizer_of)
        for bottleneck in restores if mode != "stock" else restores[:1]:
            cases[f"{name}_{bottleneck}_restored"] = restored(bottleneck, optimizer_of)
    if mode != "stock":
        cases["not_asked"] = not_asked
    slow = [name for name in cases if name.startswith("momentum_")]
    if servers == 2:
        slow.remove("momentum_compute")
    coordinator.finish(cases, slow)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
