# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps whose lookups add up rows, on parameter servers, stock and with fuse_lookups_combine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fault import coordinator

# Payloads of frames are multiples of 64 bytes: so are all tensors of these sizes.
TABLES, ROWS, WIDTH, BATCH, IDS, UNIQUE, STEPS = 10, 1000, 16, 16, 128, 64, 3
COMBINERS = ("sum", "mean", "sqrtn")
SPARSE = [
    f"{combiner}{weights}, {dtype}"
    for combiner, weights, dtype in itertools.product(
        COMBINERS, ("", " with weights"), ("int32", "int64")
    )
]
# Names of rows, and of their gradients (times a rate).
ROWS_SENT = re.compile(r"embedding_lookup(_\d+)?$|Gather(_\d+)?$|^mul(_\d+)?$")
OPTIMIZERS = [
    f"{module} {optimizer}" for module in ("keras", "tf_keras") for optimizer in ("SGD", "Adagrad")
]


def _initial(rows, width, dtype=np.float32):
    return np.random.default_rng(rows + width).normal(size=[rows, width]).astype(dtype)


def _ids(dtype=np.int32):
    rng = np.random.default_rng(1)
    numbers = rng.permutation(ROWS)[:UNIQUE]
    return rng.permutation(np.resize(numbers, [IDS])).astype(dtype)


# Of the ids; example 3 has none, the last one has some.
EXAMPLES = np.sort(np.r_[np.delete(np.arange(BATCH), 3), np.resize([4, 5, 9, 15], IDS - 15)])
PLACES = np.stack([EXAMPLES, np.arange(IDS)], axis=1)
SPLITS = np.searchsorted(EXAMPLES, np.arange(BATCH + 1))
NUMBERS = np.linspace(0.25, 2, IDS).astype(np.float32)


def cases(job: Any, kind: str) -> dict[str, Callable[[], Any]]:
    """The cases by name; all but the values only for the kind "all"."""

    def use(on, **more):
        """Without our options the graphs are stock TensorFlow's."""
        tf.config.optimizer.set_experimental_options(
            {"do_fuse_recv": on, "fuse_lookups_combine": on, **more}
        )

    def variable(value, strategy=job.strategy):
        with strategy.scope():
            return tf.Variable(value)

    def lookup_of(combiner, weighted=False, safe=False):
        def lookup(table, ids, places, numbers):
            shape = [BATCH, IDS]
            features = tf.SparseTensor(places, ids, shape)
            weights = tf.SparseTensor(places, numbers, shape) if weighted else None
            look_up = getattr(tf.nn, "safe_" * safe + "embedding_lookup_sparse")
            return look_up(table, features, weights, combiner=combiner)

        return lookup

    def train(lookup, tables, signature=None, trains=True):
        """A step: sums, a loss of them, and SGD by hand."""

        @tf.function(input_signature=signature, autograph=False)
        def step(*arguments):
            with tf.GradientTape() as tape:
                sums = lookup(*arguments)
                loss = tf.add_n([tf.reduce_sum(tf.cast(one, tf.float32) ** 2) for one in sums])
            if not trains:
                return loss, sums
            pieces = [piece for one in tables for piece in getattr(one, "variables", [one])]
            gradients = tape.gradient(loss, pieces)
            for piece, gradient in zip(pieces, gradients, strict=True):
                rate = tf.cast(0.01, gradient.dtype)
                if isinstance(gradient, tf.IndexedSlices):
                    change = rate * gradient.values
                    piece.scatter_sub(tf.IndexedSlices(change, gradient.indices))
                else:  # (A loop has added it up.)
                    piece.assign_sub(rate * gradient)
            return loss, sums

        return step

    def last_sent():
        """What tasks have got in the last function, by the operation that made it."""
        import tf_fuse

        report = tf_fuse.cluster_reports()["/job:worker/replica:0/task:0"][-1]
        slots = [slot for group in report.get("groups", []) for slot in group["slots"]]
        slots += [skip["slot"] for skip in report.get("skips", [])]
        return sorted({slot["sender_node"] for slot in slots})

    def compared(make, *arguments, trains=True):
        """Steps, stock and ours, with sizes that are known when a step is traced, and not."""
        arguments = [np.asarray(one) for one in arguments]
        unknown = [tf.TensorSpec([None] * one.ndim, one.dtype) for one in arguments]
        found = {"sent": []}
        for name, on in (("stock", False), ("on", True)):
            use(on)
            results = []
            for signature in (None, unknown):
                lookup, tables = make()
                step = train(lookup, tables, signature, trains)
                losses = [job.call(step, tuple(arguments)) for _ in range(STEPS)]
                values = [tf.convert_to_tensor(one).numpy() for one in tables]
                results += [*losses, *([value] for value in values)]
                if on and kind == "all":
                    found["sent"].append(last_sent())
            found[name] = coordinator.exact(results)
        found["moved"] = [not any(ROWS_SENT.search(one) for one in sent) for sent in found["sent"]]
        return found

    def one(lookup, dtype=np.float32, width=WIDTH):
        def make():
            table = variable(tf.cast(_initial(ROWS, width), dtype))
            return lambda *arguments: [lookup(table, *arguments)], [table]

        return make

    def sparse(combiner="mean", weighted=False, safe=False, ids=None, **table):
        ids = _ids() if ids is None else ids
        lookup = lookup_of(combiner, weighted, safe)
        return compared(one(lookup, **table), ids, PLACES, NUMBERS)

    def ragged(reduce):
        def lookup(table, ids, splits):
            rows = tf.RaggedTensor.from_row_splits(ids, splits)
            return reduce(tf.nn.embedding_lookup(table, rows), axis=1)

        return compared(one(lookup), _ids(), SPLITS)

    def segments():
        def lookup(table, ids, examples):
            return tf.math.segment_sum(tf.nn.embedding_lookup(table, ids), examples)

        return compared(one(lookup), _ids(), EXAMPLES.astype(np.int32))

    def axis(reduce, shape, axes):
        return compared(
            one(lambda table, ids: reduce(tf.gather(table, ids), axes)), _ids().reshape(shape)
        )

    def mask():
        def lookup(table, ids, which):
            rows = tf.nn.embedding_lookup(table, ids) * which[:, :, tf.newaxis]
            return tf.reduce_sum(rows, 1) / tf.reduce_sum(which, 1)[:, tf.newaxis]

        which = (NUMBERS > 1).astype(np.float32).reshape([BATCH, -1]) + 0.5
        return compared(one(lookup), _ids().reshape([BATCH, -1]), which)

    def two_tables():
        def make():
            # The second one is on the other server, the third beside the first.
            tables = [variable(_initial(ROWS, 8 + number)) for number in range(3)]
            lookups = [lookup_of(combiner) for combiner in COMBINERS]
            pairs = list(zip(lookups, tables, strict=True))
            return lambda *arguments: [f(table, *arguments) for f, table in pairs], tables

        return compared(make, _ids(), PLACES, NUMBERS)

    def pieces():
        strategy = tf.distribute.ParameterServerStrategy(
            job.cluster.resolver(),
            tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
        )

        def make():
            table = variable(_initial(ROWS, WIDTH), strategy)
            return lambda *arguments: [lookup_of("sum")(table.variables, *arguments)], [table]

        return compared(make, _ids(), PLACES, NUMBERS)

    def branch(trains, flag=True):
        def lookup(table, flag, *arguments):
            return tf.cond(
                flag,
                lambda: lookup_of("mean")(table, *arguments),
                lambda: tf.zeros([BATCH, WIDTH]),
            )

        return compared(one(lookup), flag, _ids(), PLACES, NUMBERS, trains=trains)

    def loop(trains):
        def lookup(table, ids, places, numbers):
            def more(number, total):
                sums = lookup_of("mean")(table, ids + number, places, numbers)
                return number + 1, total + sums

            start = [tf.constant(0), tf.zeros([BATCH, WIDTH])]
            return tf.while_loop(lambda i, _: i < 3, more, start)[1]

        ids = np.minimum(_ids(), ROWS - 3)
        return compared(one(lookup), ids, PLACES, NUMBERS, trains=trains)

    values = {
        "safe": lambda: sparse(safe=True),
        "safe with weights": lambda: sparse("sqrtn", weighted=True, safe=True),
        "empty rows": lambda: sparse(safe=True, ids=np.where(EXAMPLES % 3, _ids(), -1)),
        "no ids": lambda: compared(one(lookup_of("mean")), _ids()[:0], PLACES[:0], NUMBERS[:0]),
        "ragged sum": lambda: ragged(tf.reduce_sum),
        "ragged mean": lambda: ragged(tf.reduce_mean),
        "segments": segments,
        "axis sum": lambda: axis(tf.reduce_sum, [BATCH, -1], 1),
        "axis mean": lambda: axis(tf.reduce_mean, [BATCH, -1], 1),
        "axis mean of three": lambda: axis(tf.reduce_mean, [BATCH, 2, -1], [1, 2]),
        "mask": mask,
        "float64": lambda: sparse(dtype=tf.float64),
        "float16": lambda: sparse(dtype=tf.float16),
        "bfloat16": lambda: sparse(dtype=tf.bfloat16),
        "float16 with weights": lambda: sparse(weighted=True, dtype=tf.float16),
        "two tables": two_tables,
        "branch": lambda: branch(False),
        "branch that is not taken": lambda: branch(False, flag=False),
        "loop": lambda: loop(False),
        "gradient of a branch": lambda: branch(True),
        "gradient of a loop": lambda: loop(True),
        "pieces": pieces,
        "rows are used": lambda: axis(
            lambda rows, axis: tf.reduce_sum(rows, axis) + tf.reduce_max(rows, axis), [BATCH, -1], 1
        ),
        "width 1": lambda: sparse(width=1),
    }
    for name in SPARSE:
        combiner, dtype = name.split(", ")
        combiner, weighted, _ = combiner.partition(" with weights")
        values[name] = lambda c=combiner, w=bool(weighted), t=dtype: sparse(
            c, w, ids=_ids(np.dtype(t))
        )

    def trained(make_model, optimizer, *arguments, **options):
        """Steps of an optimizer, stock and ours."""

        def step_of(weights, loss_of, trainer):
            @tf.function(autograph=False)
            def step(*arguments):
                def replica():
                    with tf.GradientTape() as tape:
                        loss = loss_of(*arguments)
                    gradients = tape.gradient(loss, weights)
                    trainer.apply_gradients(zip(gradients, weights, strict=True))
                    return loss

                return job.strategy.run(replica)

            return step

        found = {}
        for key, on in (("stock", False), ("on", True)):
            use(on, **options)
            with job.strategy.scope():
                weights, loss_of = make_model()
                trainer = optimizer()
                trainer.build(weights)
            step = step_of(weights, loss_of, trainer)
            losses = [job.call(step, arguments) for _ in range(STEPS)]
            values = [tf.convert_to_tensor(one).numpy() for one in weights]
            found[key] = coordinator.exact([losses, values])
        found["sent"] = last_sent()
        found["moved"] = [not any(ROWS_SENT.search(one) for one in found["sent"])]
        return found

    def optimizer(name):
        import tf_keras

        module, cls = name.split()
        optimizers = (tf_keras if module == "tf_keras" else tf.keras).optimizers

        def model():
            tables = [tf.Variable(_initial(ROWS, WIDTH + i)) for i in range(2)]
            layer = tf.Variable(_initial(2 * WIDTH + 1, 1))

            def loss_of(*arguments):
                sums = [lookup_of("mean")(table, *arguments) for table in tables]
                return tf.reduce_mean((tf.concat(sums, 1) @ layer - 1.0) ** 2)

            return [layer, *tables], loss_of

        make = getattr(optimizers, cls)
        return trained(model, lambda: make(0.01), _ids(), PLACES, NUMBERS)

    def keras_model(kind):
        keras = tf.keras

        def model():
            keras.utils.set_random_seed(1)
            inputs = [
                keras.Input([8], dtype="int32") for _ in range(2 if kind == "two inputs" else 1)
            ]
            pooled = [
                keras.layers.GlobalAveragePooling1D()(
                    keras.layers.Embedding(ROWS, WIDTH, mask_zero=kind == "masked")(one)
                )
                for one in inputs
            ]
            joined = pooled[0] if len(pooled) == 1 else keras.layers.Concatenate()(pooled)
            whole = keras.Model(inputs, keras.layers.Dense(1)(joined))

            def loss_of(ids):
                return tf.reduce_mean((whole([ids] * len(inputs)) - 1.0) ** 2)

            return whole.trainable_variables, loss_of

        arguments = ((_ids().reshape([BATCH, 8]) * (np.arange(8) < 6)).astype(np.int32),)
        return trained(model, lambda: keras.optimizers.SGD(0.01), arguments, gather_on_servers=True)

    def bytes_of_steps():
        found, kept = {}, []  # (A function that is collected has its handles packed no more.)

        def counted(on, make, arguments):
            use(on)
            tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
            lookups, tables = zip(*(make() for _ in range(TABLES)), strict=True)

            def lookup(*arguments):
                return [
                    f(*(one[number] for one in arguments))[0] for number, f in enumerate(lookups)
                ]

            step = train(lookup, [table for (table,) in tables])
            kept.append(step)
            arguments = tuple(np.stack([one] * TABLES) for one in arguments)
            job.call(step, arguments)
            return job.counted(lambda: job.call(step, arguments))["counters"]

        for key, on in (("stock", False), ("on", True)):
            found[key] = counted(on, one(lookup_of("mean")), (_ids(), PLACES, NUMBERS))
            found[f"{key}, axis"] = counted(
                on,
                one(lambda table, ids: tf.reduce_sum(tf.gather(table, ids), 1)),
                (_ids().reshape([BATCH, -1]),),
            )
        return found

    def with_unique():
        found = {}
        for key, on in (("stock", False), ("on", True)):
            use(on, fuse_lookups_unique=on)
            lookup, tables = one(lookup_of("mean"))()
            step = train(lookup, tables)
            losses = [job.call(step, (_ids(), PLACES, NUMBERS)) for _ in range(STEPS)]
            found[key] = coordinator.exact([*losses, [tables[0].numpy()]])
        use(True, fuse_lookups_unique=False)
        return {**found, "moved": [not any(map(ROWS_SENT.search, last_sent()))]}

    def with_compress():
        """Numbers that bfloat16 holds."""
        found = {}
        for key, on in (("stock", False), ("on", True)):
            use(on, compress="bfloat16")
            lookup, tables = one(lambda table, *a: 2.0 * lookup_of("sum")(table, *a))()
            tables[0].assign(np.round(tables[0]))
            step = train(lookup, tables)
            loss, sums = job.call(step, (_ids(), PLACES, NUMBERS))
            found[key] = coordinator.exact([loss, *sums])
        use(True, compress="")
        return {**found, "moved": [not any(map(ROWS_SENT.search, last_sent()))]}

    def wrong(what):
        ids, places = _ids(), PLACES.copy()
        if "id" in what:
            ids[5] = -1 if "negative" in what else ROWS
        else:
            places[5:, 0] = -1 if "negative" in what else places[:-5, 0][::-1]
        found = {}
        for key, on in (("stock", False), ("on", True)):
            use(on)
            lookup, tables = one(lookup_of("mean"))()
            step = train(lookup, tables)
            found[key] = coordinator.caught(
                lambda step=step: job.call(step, (ids, places, NUMBERS))
            )
            reason = re.search(r"(indices\S* = |[Ss]egment id)[^\n\[]*", found[key].get("text", ""))
            found[key]["reason"] = reason and reason[0]
        loss, _ = job.call(step, (_ids(), PLACES, NUMBERS))
        found["after"] = bool(np.isfinite(loss))
        return found

    found_cases = dict(values)
    if kind == "all":
        for name in OPTIMIZERS:
            found_cases[name] = lambda name=name: optimizer(name)
        for layers in ("one input", "masked", "two inputs"):
            found_cases[f"keras, {layers}"] = lambda layers=layers: keras_model(layers)
        found_cases |= {"bytes": bytes_of_steps, "unique": with_unique, "compress": with_compress}
        for what in ("id", "negative id", "segments", "negative segment"):
            found_cases[f"wrong {what}"] = lambda what=what: wrong(what)
    return found_cases
