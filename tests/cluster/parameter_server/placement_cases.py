# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that makes models on parameter servers: `python placement_cases.py MODE PS DIR`.

MODE is of `coordinator.Job`; "on" has the option `shard_weight_update` too, but in its first case.
"""

import sys
from pathlib import Path

from tests.fault import coordinator


def main(mode, servers, folder):
    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job(mode, 1, servers)
    resolver = job.cluster.resolver()
    if mode != "stock":
        from tf_fuse import parameter_server

    def strategy_of(partitioner=None):
        return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)

    def server(variable):
        return tf.DeviceSpec.from_string(variable.device).task

    def kernels_and_biases():
        return [tf.Variable(tf.zeros([97] if i % 2 == 0 else [5]), name=f"v{i}") for i in range(16)]

    def floats():
        """How many floats each server has, of layers that stock puts on one."""
        with strategy_of().scope():
            made = kernels_and_biases()
        sums = [0] * servers
        for variable in made:
            sums[server(variable)] += variable.shape.num_elements()
        return sums

    def floats_without_the_option():
        result = floats()
        tf.config.optimizer.set_experimental_options({"shard_weight_update": True})
        return result

    def make_layers():
        keras.utils.set_random_seed(7)
        model = keras.Sequential(
            [
                keras.layers.Dense(64, name="a"),
                keras.layers.Dense(64, name="b"),
                keras.layers.Dense(1, name="c"),
            ]
        )
        model.build((None, 16))
        return model

    def make_model():
        model = make_layers()
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        return model, optimizer

    def weights_of(model):
        return [np.asarray(v) for v in model.trainable_variables]

    def train(strategy, model, optimizer, steps, variables=None):
        variables = variables or [v.value for v in model.trainable_variables]

        def replica():
            x = tf.reshape(tf.cast(tf.range(64), tf.float32), [4, 16]) / 64.0
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
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
        return losses

    def checkpoint(model, optimizer):
        return tf.train.Checkpoint(model=model, optimizer=optimizer)

    def training():
        """Trains, saves, and goes on; the next run restores with another number of servers."""
        strategy = strategy_of()
        with strategy.scope():
            build = parameter_server.build if mode != "stock" else lambda make: make()
            model, optimizer = build(make_model)
        losses = train(strategy, model, optimizer, 3)
        saved = checkpoint(model, optimizer).save(str(Path(folder) / f"{mode}{servers}"))
        then = train(strategy, model, optimizer, 2)
        slots = [
            [server(v.value) == server(w.value) for v in optimizer.variables if _belongs(v, w)]
            for w in model.trainable_variables
        ]
        return {
            "losses": coordinator.exact(losses),
            "then": coordinator.exact(then),
            "weights": coordinator.exact(weights_of(model)),
            "saved": saved,
            "slots": slots,
            "report": parameter_server.placement_report(strategy) if mode == "on" else None,
        }

    def _belongs(slot, weight):
        return slot.name.startswith(weight.path.replace("/", "_") + "_")

    def restored():
        """What a checkpoint of each other run so far gives."""
        results = {}
        for index in sorted(Path(folder).glob("*-1.index")):
            strategy = strategy_of()
            with strategy.scope():
                model, optimizer = make_model()
            checkpoint(model, optimizer).restore(str(index)[: -len(".index")])
            results[index.stem] = coordinator.exact(train(strategy, model, optimizer, 2))
        return results

    def late():
        """A variable that a function makes in its first step."""
        strategy = strategy_of()
        made = []

        @tf.function
        def step():
            if not made:
                with strategy.scope():
                    made.append(tf.Variable(tf.ones([1000]), name="late"))
            return tf.reduce_sum(made[0].assign_add(tf.ones([1000])))

        with strategy.scope():
            first = tf.Variable(tf.zeros([2000]), name="first")
        loop = tf.distribute.coordinator.ClusterCoordinator(strategy)
        values = []
        for _ in range(2):
            result = loop.schedule(step)
            loop.join()
            values.append(float(result.fetch()))
        return values, server(first), server(made[0])

    def explicit():
        strategy = strategy_of()
        with strategy.scope():
            with tf.device(f"/job:ps/task:{servers - 1}"):
                made = [tf.Variable(tf.zeros([8])) for _ in range(3)]
            with strategy.extended.colocate_vars_with(made[0]):
                beside = tf.Variable(tf.zeros([8]))
            with tf.device("/job:worker/task:0"):
                free = tf.Variable(tf.zeros([8]))
            try:
                with tf.device(f"/job:ps/task:{servers}"):
                    tf.Variable([0.0], name="lost")
                text = None
            except ValueError as error:
                text = str(error)
        device = tf.DeviceSpec.from_string(free.device)
        return [server(v) for v in made], server(beside), [device.job, device.task], text

    def initial_values():
        """Each kind of initial value, and how often a function that makes one is called."""
        calls = []

        def value():
            calls.append(1)
            return tf.constant([1.0, 2.0])

        strategy = strategy_of()
        with strategy.scope():
            tf.random.set_seed(3)
            made = [
                tf.Variable(value),
                tf.Variable(3),
                tf.Variable([1.5, 2.5]),
                tf.Variable(np.arange(3.0)),
                tf.Variable("text"),
                tf.Variable(lambda: tf.random.normal([3])),
                tf.Variable(tf.random.normal([3])),
                tf.Variable([1.0], shape=tf.TensorShape([None])),
                tf.Variable(7, dtype=tf.float64),
            ]
        return coordinator.exact([v.numpy() for v in made]), len(calls), [v.name for v in made]

    def pieces():
        """A table and a kernel in pieces, and what a checkpoint of them has."""
        costs = parameter_server.Costs(rows_per_step={"embeddings": 50_000})
        partitioner = parameter_server.CostPartitioner(servers, costs)
        strategy = strategy_of(partitioner)
        with strategy.scope():
            tf.Variable(tf.zeros([300_000]), name="ballast")
            table = tf.Variable(tf.reshape(tf.range(1_200_000.0), [-1, 12]), name="embeddings")
            kernel = tf.Variable(tf.reshape(tf.range(1_000_000.0), [1000, 1000]), name="kernel")
            small = tf.Variable(tf.zeros([10, 10]), name="small")
            with tf.device("/job:ps/task:1"):
                fixed = tf.Variable(tf.zeros([1000, 1000]), name="fixed")
            del fixed
        path = tf.train.Checkpoint(t=table, k=kernel).write(str(Path(folder) / f"pieces{servers}"))
        reader = tf.train.load_checkpoint(path)
        keys = {"t/.ATTRIBUTES/VARIABLE_VALUE": table, "k/.ATTRIBUTES/VARIABLE_VALUE": kernel}
        whole = [bool((reader.get_tensor(k) == v.numpy()).all()) for k, v in keys.items()]
        report = parameter_server.placement_report(strategy)
        return {
            "table": [server(v) for v in table.variables],
            "kernel": [server(v) for v in kernel.variables],
            "small": type(small).__name__,
            "shapes": [v.shape.as_list() for v in table.variables],
            "whole": whole,
            "kept": [one["kept_bytes"] for one in report["servers"]],
            "partitions": {p["variable"]: p["pieces"] for p in report["partitions"]},
        }

    def planned_pieces():
        """Of a plan only what dominates is split."""
        partitioner = parameter_server.CostPartitioner(servers)
        strategy = strategy_of(partitioner)

        def make():
            big = tf.Variable(lambda: tf.zeros([4000, 1000]), name="big", shape=[4000, 1000])
            others = [tf.Variable(tf.zeros([500, 500]), name=f"w{i}") for i in range(6)]
            return big, others

        with strategy.scope():
            big, others = parameter_server.build(make)
        report = parameter_server.placement_report(strategy)
        return {
            "big": sorted(server(v) for v in big.variables),
            "others": sorted(server(v) for v in others),
            "why": sorted({v["why"] for v in report["variables"]}),
            "plans": report["plans"],
            "imbalance": report["imbalance"]["kept_bytes"],
        }

    def keras_pieces():
        """A Keras 3 model in pieces, whose optimizer and tape are given those."""
        results = {}
        costs = parameter_server.Costs(link_bytes_per_s=1e6)
        for partitioner in (None, parameter_server.CostPartitioner(servers, costs)):
            strategy = strategy_of(partitioner)

            def make():
                model = make_layers()
                optimizer = keras.optimizers.Adam(0.01)
                variables = parameter_server.pieces(model.trainable_variables)
                optimizer.build(variables)
                return model, optimizer, variables

            with strategy.scope():
                model, optimizer, variables = parameter_server.build(make)
            losses = train(strategy, model, optimizer, 3, variables)
            report = parameter_server.placement_report(strategy)
            slots = [one["slots"] for one in report["variables"] if "adam" not in one["variable"]]
            name = "whole" if partitioner is None else "pieces"
            results[name] = [coordinator.exact(losses), len(variables), slots]
        return results

    def unplanned():
        """A model that needs values while it is built is placed as it is made."""
        strategy = strategy_of()

        def make():
            first = tf.Variable(tf.ones([10]), name="first")
            return first, tf.Variable(tf.ones([int(tf.reduce_sum(first))]), name="second")

        with strategy.scope():
            made = parameter_server.build(make)
        report = parameter_server.placement_report(strategy)
        return [server(v) for v in made], [v["why"] for v in report["variables"]], report["plans"]

    def with_the_option(case):
        def run():
            tf.config.optimizer.set_experimental_options({"shard_weight_update": True})
            return case()

        return run

    others = ()
    cases = {
        "floats": floats,
        "training": training,
        "restored": restored,
        "initial_values": initial_values,
    }
    if mode == "on":
        cases = {"floats_without_the_option": floats_without_the_option, **cases}
        others = (late, explicit, pieces, planned_pieces, keras_pieces, unplanned)
        cases |= {case.__name__: with_the_option(case) for case in others}
    # (With three servers, which restore checkpoints, others show the same.)
    coordinator.finish(cases, [case.__name__ for case in others] if servers == 3 else ())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
