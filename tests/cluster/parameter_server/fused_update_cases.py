# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of updates on servers, on one cluster: training with stock updates and with fused ones."""

import itertools
import sys

from tests.fault import coordinator

GRADIENTS = ("dense", "sparse")
# Of optimizers and gradients, those that are not slow.
FAST = {
    ("keras Adagrad", "sparse"),
    ("keras Adagrad clipnorm", "sparse"),
    ("keras Adam", "sparse"),
    ("keras SGD", "dense"),
    ("keras SGD global_clipnorm", "dense"),
    ("tf.compat.v1.train Adam", "dense"),
    ("tf_keras Nadam", "sparse"),
    ("tf_keras.legacy Adam", "sparse"),
}


def names():
    """The optimizers."""
    both = ["Adadelta", "Adagrad", "Adam", "Adam amsgrad", "AdamW", "Adamax", "Ftrl", "Lion"]
    both += ["Nadam", "RMSprop", "RMSprop centered", "SGD", "SGD momentum", "SGD nesterov"]
    more = [f"keras {name} clipnorm" for name in ("Adagrad", "Ftrl", "RMSprop")]
    more += ["keras SGD clipnorm", "keras SGD global_clipnorm", "tf_keras.legacy Adam"]
    more.append("tf.compat.v1.train Adam")
    return [f"{module} {name}" for module in ("keras", "tf_keras") for name in both] + more


SLOW = {
    *(f"{one[0]} {one[1]}" for one in itertools.product(names(), GRADIENTS) if one not in FAST),
    "Adam dense, several steps",
    "RMSprop with zeros",
}


def _main():
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_keras
    from tensorflow.python.eager import context as context_module

    import tf_fuse
    from tests.cluster.parameter_server import update_cases as updates
    from tf_fuse.shard_update import interception

    job = coordinator.Job("off", 1, 2)
    context = context_module.context()

    def decisions():
        return interception.fuser_of(context).decisions

    def switch(on, **others):
        """Off, no option is on: graphs are stock TensorFlow's."""
        options = {"fuse_weight_update": on, "do_fuse_recv": on, "fuse_grouping": "level"}
        tf.config.optimizer.set_experimental_options({**options, **others})

    worker = "/job:worker/replica:0/task:0"

    def grouped():
        """How many operations of the last function's servers run together with others."""
        groups = tf_fuse.cluster_reports()[worker][-1].get("operation_groups", [])
        on_servers = [one["operations"] for one in groups if "/job:ps/" in one["device"]]
        return sum(sum(one.values()) for one in on_servers)

    def compared(make, **options):
        switch(False)
        rewritten = job.by_task("functions")[worker]
        stock = updates.trained(job, make, **options)
        assert job.by_task("functions")[worker] == rewritten, "stock was rewritten"
        before = len(decisions())
        switch(True)
        ours = updates.trained(job, make, **options)
        switch(False)
        found = [one.outline for one in decisions()[before:]]
        return {
            "ulps": updates.ulps(ours, stock),
            "grouped": grouped(),
            "fused": sum(len(one.clusters) for one in found),
            "exact": [exact for one in found for exact in one.exact],
            "left": sorted({left.reason for one in found for left in one.left}),
        }

    def case(make, **options):
        return lambda: compared(make, **options)

    cases = {}
    makers = updates.makers()
    for name, make in makers.items():
        for gradient in GRADIENTS:
            cases[f"{name} {gradient}"] = case(make, sparse=gradient == "sparse")
    adam = makers["keras Adam"]
    cases["nested"] = case(adam, nested=True)
    cases["returns nothing"] = case(adam, returns=False)
    for name in ("Adam dense", "Adam sparse", "Adagrad sparse"):
        optimizer, gradient = name.split()
        make = makers[f"keras {optimizer}"]
        cases[f"{name}, several steps"] = case(make, sparse=gradient == "sparse", times=3)

    def without_fused_receives():
        tf.config.optimizer.set_experimental_options({"do_fuse_recv": False})
        stock = updates.trained(job, adam)
        before = len(decisions())
        tf.config.optimizer.set_experimental_options(
            {"do_fuse_recv": False, "fuse_weight_update": True}
        )
        ours = updates.trained(job, adam)
        found = [one.outline for one in decisions()[before:]]
        return {
            "ulps": updates.ulps(ours, stock),
            "fused": sum(len(one.clusters) for one in found),
            "left": sorted({left.reason for one in found for left in one.left}),
        }

    def with_zeros(cls, **options):
        def make():
            return getattr(tf.keras.optimizers, cls)(0.01, epsilon=0.0, **options)

        def run(on):
            switch(on)
            model = updates.Model(job.strategy, make)
            job.call(model.step, (tf.constant([5, 2, 9, 0, 39, 7, 11, 3]),))
            switch(False)
            return model.values()

        stock = run(False)
        before = len(decisions())
        ours = run(True)
        table = ours[4]
        return {
            "same": all(map(np.array_equal, ours, stock, [True] * len(ours))),
            "nan_rows": int(np.isnan(table).all(axis=1).sum()),
            "fused": sum(len(one.outline.clusters) for one in decisions()[before:]),
        }

    def two_servers():
        rows = tf.constant([1, 3])

        def run(on):
            slot, weight, table, rows_slot = job.variables([tf.fill([5, 2], 1.25)] * 4)

            @tf.function(autograph=False)
            def step():
                def replica():
                    slot.assign(slot * 0.5 + weight)
                    weight.assign_sub(slot * 0.1 + weight * 0.2)
                    rows_slot.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), rows))
                    taken = tf.gather(rows_slot, rows) * 0.5
                    table.scatter_sub(tf.IndexedSlices(taken, rows))

                job.strategy.run(replica)

            switch(on)
            job.call(step)
            switch(False)
            values = [slot, weight, table, rows_slot]
            tasks = sorted({tf.DeviceSpec.from_string(one.device).task for one in values})
            return tasks, coordinator.exact([one.numpy() for one in values])

        servers, stock = run(False)
        before = len(decisions())
        _, ours = run(True)
        found = [one.outline for one in decisions()[before:]]
        fused = [len(fusion.variables) for one in found for fusion in one.clusters]
        return {"servers": servers, "stock": stock, "ours": ours, "fused": fused}

    def sums():
        """Returns the sum of three tensors; two depend on the rate alone."""
        numbers = np.linspace(1, 3, 3000).astype("float32")

        def run(on):
            rate, *weights = job.variables([0.1, *[tf.constant(numbers)] * 4])

            @tf.function(autograph=False)
            def step(x):
                def replica():
                    for i in range(2):
                        scaled = tf.cos(x * rate), tf.exp(x * rate), tf.tanh(x * (1.7 + i))
                        total = tf.sin(tf.add_n(scaled))
                        slot, weight = weights[2 * i : 2 * i + 2]
                        slot.assign(slot * 0.9 + total)
                        weight.assign_sub(slot * rate)

                job.strategy.run(replica)

            switch(on)
            job.call(step, (tf.constant(numbers),))
            switch(False)
            return coordinator.exact([one.numpy() for one in weights])

        return {"stock": run(False), "ours": run(True)}

    def passed_variables(nested):
        def run(on):
            switch(on)
            pairs = []
            for task in range(2):
                with tf.device(f"/job:ps/task:{task}"):
                    pairs.append([tf.Variable(tf.fill([5], 1.0 + i)) for i in range(2)])

            @tf.function
            def step(weight, slot):
                slot.assign(slot * 0.5 + 0.3)
                weight.assign_sub(slot * 0.1)

            (a, m), (b, n) = pairs
            every = ((a, m), (b, n), (a, n), (a, m))
            if nested:
                job.call(tf.function(lambda: [step(*passed) for passed in every] and None))
            else:
                for passed in every:
                    job.call(step, passed)
            switch(False)
            return coordinator.exact([one.numpy() for pair in pairs for one in pair])

        stock = run(False)
        before = len(decisions())
        ours = run(True)
        found = [len(one.outline.clusters) for one in decisions()[before:]]
        return {"stock": stock, "ours": ours, "fused": found}

    def off():
        switch(False, do_fuse_recv=True)
        before = len(decisions())
        model = updates.Model(job.strategy, adam)
        job.call(model.step, (tf.constant(updates.IDS[0]),))
        names = [f.name for f in model.step._list_all_concrete_functions()]
        rewritten = [n for n in names if context.has_function(f"{n}__tf_fuse_fused")]
        return {"decided": len(decisions()) - before, "rewritten": rewritten}

    def by_default():
        before = len(decisions())
        options = context._optimizer_experimental_options
        switch(True, shard_weight_update=True)
        del options["fuse_weight_update"]  # (As in a program that does not say.)
        updates.trained(job, adam, 1)
        switch(False, shard_weight_update=False)
        found = [one.outline for one in decisions()[before:]]
        return {
            "fused": sum(len(one.clusters) for one in found),
            "left": [left.reason for one in found for left in one.left],
            "said": [one.reason for one in interception.updates_of(context).decisions],
        }

    def locks():
        model = updates.Model(job.strategy, makers["tf.compat.v1.train Adam"], sparse=False)
        switch(True)
        job.call(model.step, (tf.constant(updates.IDS[0]),))
        switch(False)

        def of(name):
            nodes = context.get_function_def(name).node_def
            return [n.attr["use_locking"].b for n in nodes if n.op == "ResourceApplyAdam"]

        # (The first trace made the slots, and is not called.)
        functions = [f.function_def for f in model.step._list_all_concrete_functions()]
        rewritten = {f"{f.signature.name}__tf_fuse_fused": f.signature.name for f in functions}
        (one,) = filter(context.has_function, rewritten)
        return {"before": of(rewritten[one]), "after": of(one)}

    def report():
        from tf_fuse.shard_update import fusion_report

        before = tf_fuse.metrics()["weight_updates"]
        switch(True)
        updates.trained(job, adam, 1)
        switch(False)
        after = tf_fuse.metrics()["weight_updates"]
        names = ("updates_fused", "assignments_left")
        function = tf_fuse.weight_update_report()["operations"][-1]
        return {
            "function": function,
            "lines": list(fusion_report.lines([function])),
            "counted": {name: after[name] - before[name] for name in names},
        }

    def exact(make):
        tf.config.optimizer.set_experimental_options({"shard_weight_update_exact": True})
        try:
            return compared(make)
        finally:
            tf.config.optimizer.set_experimental_options({"shard_weight_update_exact": False})

    def twice():
        def trained(on):
            switch(on, shard_weight_update_exact=on)
            with job.strategy.scope():
                table = tf.Variable(tf.random.stateless_normal([9, 4], [0, 3]))
                optimizer = adam()
                optimizer.build([table])

            def replica(values):
                slices = tf.IndexedSlices(values, tf.constant([1, 3, 3, 0, 8]), tf.constant([9, 4]))
                for _ in range(2):
                    optimizer.apply_gradients([(slices, table)])

            step = tf.function(lambda one: job.strategy.run(replica, args=(one,)), autograph=False)
            for number in range(3):
                job.call(step, (tf.random.stateless_normal([5, 4], [number, 9]),))
            values = [table, *optimizer.variables]
            return [tf.convert_to_tensor(one).numpy().tobytes() for one in values]

        stock, before = trained(False), len(decisions())
        ours = trained(True)
        found = decisions()[before:]
        switch(False, shard_weight_update_exact=False)
        return {
            "same": [a == b for a, b in zip(ours, stock, strict=True)],
            "fused": sum(len(one.outline.clusters) for one in found),
        }

    def error():
        with job.strategy.scope():
            weight = tf.Variable(tf.zeros([2, 2]))
            optimizer = adam()
            optimizer.build([weight])

        @tf.function
        def step():
            def replica():
                gradient = tf.linalg.inv(weight, name="in_inverse")
                optimizer.apply_gradients([(gradient, weight)])

            job.strategy.run(replica)

        before = len(decisions())
        switch(True)
        caught = coordinator.caught(lambda: job.call(step))
        switch(False)
        found = decisions()[before:]
        return {"text": caught["text"], "fused": sum(bool(d.outline.clusters) for d in found)}

    def in_a_branch(**options):
        def text(on):
            switch(on, shard_weight_update=on)
            try:
                model = updates.Model(job.strategy, lambda: keras.optimizers.SGD(0.1, **options))
                job.call(model.step, (tf.constant([5, 2, 9, 0, 39, 7, 11, 3]),))
            except RuntimeError as error:
                return str(error)
            finally:
                switch(False, shard_weight_update=False)

        return [text(False), text(True)]

    cases |= {
        "accumulation": lambda: in_a_branch(gradient_accumulation_steps=2),
        "overwriting": lambda: in_a_branch(use_ema=True, ema_overwrite_frequency=2),
        "Adagrad with zeros": lambda: with_zeros("Adagrad", initial_accumulator_value=0.0),
        "RMSprop with zeros": lambda: with_zeros("RMSprop"),
        "two servers": two_servers,
        "sums": sums,
        "passed variables": lambda: passed_variables(nested=False),
        "variables passed on": lambda: passed_variables(nested=True),
        "without fused receives": without_fused_receives,
        "on by default": by_default,
        "locks": locks,
        "report": report,
        "off": off,
        "exact": lambda: exact(adam),
        "exact twice": twice,
        "exact rows": lambda: exact(makers["keras RMSprop centered"]),
        "exact clipnorm": lambda: exact(lambda: tf_keras.optimizers.RMSprop(0.01, clipnorm=0.5)),
        "error": error,
    }
    coordinator.finish(cases, SLOW)


if __name__ == "__main__":
    assert sys.argv[1] == "job"
    _main()
