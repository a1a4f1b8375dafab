# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The option fuse_lookups_combine in a job of one worker and two servers: bits, bytes, errors."""

import itertools
import re
import sys

import numpy as np
import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

# Payloads of frames are multiples of 64 bytes: so are all tensors of these sizes.
_TABLES, _ROWS, _WIDTH, _BATCH, _IDS, _UNIQUE = 10, 1000, 16, 16, 128, 64
_STEPS = 3
# By task, what it speaks; a task that speaks grpc does not have the plugin.
_JOBS = {
    "all": "grpc+fuse",
    "plain_servers": {"worker": "grpc+fuse", "ps": "grpc", "chief": "grpc+fuse"},
    "plain_worker": {"worker": "grpc", "ps": "grpc+fuse", "chief": "grpc+fuse"},
}
_COMBINERS = ("sum", "mean", "sqrtn")
_SPARSE = [
    f"{combiner}{weights}, {dtype}"
    for combiner, weights, dtype in itertools.product(
        _COMBINERS, ("", " with weights"), ("int32", "int64")
    )
]
_COMBINED = [
    *_SPARSE, "safe", "safe with weights", "empty rows", "no ids", "ragged sum", "ragged mean",
    "segments", "axis sum", "axis mean", "axis mean of three", "mask", "float64", "float16",
    "bfloat16", "float16 with weights", "two tables", "branch",
    "branch that is not taken", "loop",
]  # fmt: skip
# (A conditional keeps the rows for its gradient.)
_LEFT = ["pieces", "rows are used", "width 1", "gradient of a branch"]
# Sums travel, and a whole gradient, which the loop adds up.
_BOTH = ["gradient of a loop"]
# Names of rows, and of their gradients (times a rate).
_ROWS_SENT = re.compile(r"embedding_lookup(_\d+)?$|Gather(_\d+)?$|^mul(_\d+)?$")
_OPTIMIZERS = [
    f"{module} {optimizer}" for module in ("keras", "tf_keras") for optimizer in ("SGD", "Adagrad")
]


@pytest.fixture(scope="module", params=list(_JOBS))
def job(request):
    return coordinator.run(__file__, request.param)


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__, "all")


@pytest.mark.parametrize("kind", [*_COMBINED, *_LEFT, *_BOTH])
def test_values_gradients_and_tables_have_the_same_bits(job, kind):
    case = job[kind]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]


@pytest.mark.parametrize("kind", _COMBINED)
def test_sums_travel(cases, kind):
    assert cases[kind]["moved"] == [True, True], cases[kind]["sent"]


@pytest.mark.parametrize("kind", _LEFT)
def test_rows_travel(cases, kind):
    assert cases[kind]["moved"] == [False, False], cases[kind]["sent"]


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_optimizers_keep_their_bits(cases, name):
    case = cases[name]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]
    assert case["moved"] == [True], case["sent"]


@pytest.mark.parametrize("layers", ["one input", "masked", "two inputs"])
def test_embeddings_of_keras(cases, layers):
    case = cases[f"keras, {layers}"]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]
    assert case["moved"] == [True], case["sent"]


def test_bytes(cases):
    stock, on = cases["bytes"]["stock"], cases["bytes"]["on"]
    assert stock["fused_rpcs"] == on["fused_rpcs"]
    row = _WIDTH * 4
    rows = 2 * (_UNIQUE - _BATCH) * row  # and gradients
    numbers = _IDS * (4 + 8)  # places of the ids' rows, and segments
    assert on["tensors"] - stock["tensors"] == 2 * _TABLES
    described = 2 * 32
    assert stock["bytes"] - on["bytes"] == _TABLES * (rows - numbers - described)


def test_bytes_of_sums_along_an_axis(cases):
    stock, on = cases["bytes"]["stock, axis"], cases["bytes"]["on, axis"]
    assert stock["fused_rpcs"] == on["fused_rpcs"]
    rows = 2 * (_IDS - _BATCH) * _WIDTH * 4
    assert stock["bytes"] - on["bytes"] == _TABLES * rows


@pytest.mark.parametrize("what", ["id", "negative id", "segments", "negative segment"])
def test_errors_have_the_same_code(cases, what):
    case = cases[f"wrong {what}"]
    for one in (case["stock"], case["on"]):
        assert one["raised"] == "InvalidArgumentError", case
    assert case["stock"]["code"] == case["on"]["code"]
    assert case["stock"]["reason"] == case["on"]["reason"]
    assert case["after"] is True  # The job goes on.


@pytest.mark.parametrize("option", ["unique", "compress"])
def test_with_other_options(cases, option):
    case = cases[option]
    assert case["on"] == case["stock"]
    assert case["moved"] == [True]


def _initial(rows, width, dtype=np.float32):
    return np.random.default_rng(rows + width).normal(size=[rows, width]).astype(dtype)


def _ids(dtype=np.int32, limit=_ROWS):
    rng = np.random.default_rng(1)
    numbers = rng.permutation(limit)[: min(_UNIQUE, limit)]
    return rng.permutation(np.resize(numbers, [_IDS])).astype(dtype)


# Of the ids; example 3 has none, the last one has some.
_EXAMPLES = np.sort(np.r_[np.delete(np.arange(_BATCH), 3), np.resize([4, 5, 9, 15], _IDS - 15)])
_PLACES = np.stack([_EXAMPLES, np.arange(_IDS)], axis=1)
_SPLITS = np.searchsorted(_EXAMPLES, np.arange(_BATCH + 1))
_NUMBERS = np.linspace(0.25, 2, _IDS).astype(np.float32)


def _main(kind):
    import tensorflow as tf

    job = coordinator.Job("on", 1, 2, protocol=_JOBS[kind])

    def use(on, **more):
        """Without our options the graphs are stock TensorFlow's."""
        tf.config.optimizer.set_experimental_options(
            {"do_fuse_recv": on, "fuse_lookups_combine": on, **more}
        )

    def variable(value, strategy=job.strategy):
        with strategy.scope():
            return tf.Variable(value)

    sparse_lookup = tf.nn.embedding_lookup_sparse

    def lookup_of(combiner, weighted=False, safe=False):
        def lookup(table, ids, places, numbers):
            shape = [_BATCH, _IDS]
            features = tf.SparseTensor(places, ids, shape)
            weights = tf.SparseTensor(places, numbers, shape) if weighted else None
            look_up = tf.nn.safe_embedding_lookup_sparse if safe else sparse_lookup
            return look_up(table, features, weights, combiner=combiner)

        return lookup

    def train(lookup, tables, signature=None, trains=True):
        """A step: sums, a loss of them, and SGD by hand."""

        @tf.function(input_signature=signature)
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
                losses = [job.call(step, tuple(arguments)) for _ in range(_STEPS)]
                values = [tf.convert_to_tensor(one).numpy() for one in tables]
                results += [*losses, *([value] for value in values)]
                if on and kind == "all":
                    found["sent"].append(last_sent())
            found[name] = coordinator.exact(results)
        found["moved"] = [not any(_ROWS_SENT.search(one) for one in sent) for sent in found["sent"]]
        return found

    def one(lookup, dtype=np.float32, width=_WIDTH, rows=_ROWS):
        def make():
            table = variable(tf.cast(_initial(rows, width), dtype))
            return lambda *arguments: [lookup(table, *arguments)], [table]

        return make

    def sparse(combiner="mean", weighted=False, safe=False, ids=None, **table):
        ids = _ids() if ids is None else ids
        lookup = lookup_of(combiner, weighted, safe)
        return compared(one(lookup, **table), ids, _PLACES, _NUMBERS)

    def ragged(reduce):
        def lookup(table, ids, splits):
            rows = tf.RaggedTensor.from_row_splits(ids, splits)
            return reduce(tf.nn.embedding_lookup(table, rows), axis=1)

        return compared(one(lookup), _ids(), _SPLITS)

    def segments():
        def lookup(table, ids, examples):
            return tf.math.segment_sum(tf.nn.embedding_lookup(table, ids), examples)

        return compared(one(lookup), _ids(), _EXAMPLES.astype(np.int32))

    def axis(reduce, shape, axes):
        return compared(
            one(lambda table, ids: reduce(tf.gather(table, ids), axes)), _ids().reshape(shape)
        )

    def mask():
        def lookup(table, ids, which):
            rows = tf.nn.embedding_lookup(table, ids) * which[:, :, tf.newaxis]
            return tf.reduce_sum(rows, 1) / tf.reduce_sum(which, 1)[:, tf.newaxis]

        which = (_NUMBERS > 1).astype(np.float32).reshape([_BATCH, -1]) + 0.5
        return compared(one(lookup), _ids().reshape([_BATCH, -1]), which)

    def two_tables():
        def make():
            # The second one is on the other server, the third beside the first.
            tables = [variable(_initial(_ROWS, 8 + number)) for number in range(3)]
            lookups = [lookup_of(combiner) for combiner in _COMBINERS]
            pairs = list(zip(lookups, tables, strict=True))
            return lambda *arguments: [f(table, *arguments) for f, table in pairs], tables

        return compared(make, _ids(), _PLACES, _NUMBERS)

    def pieces():
        strategy = tf.distribute.ParameterServerStrategy(
            job.cluster.resolver(),
            tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
        )

        def make():
            table = variable(_initial(_ROWS, _WIDTH), strategy)
            return lambda *arguments: [lookup_of("sum")(table.variables, *arguments)], [table]

        return compared(make, _ids(), _PLACES, _NUMBERS)

    def rows_are_used():
        def lookup(table, ids):
            rows = tf.nn.embedding_lookup(table, ids)
            return tf.reduce_sum(rows, axis=1) + tf.reduce_max(rows, axis=1)

        return compared(one(lookup), _ids().reshape([_BATCH, -1]))

    def branch(trains, flag=True):
        def lookup(table, flag, *arguments):
            return tf.cond(
                flag,
                lambda: lookup_of("mean")(table, *arguments),
                lambda: tf.zeros([_BATCH, _WIDTH]),
            )

        return compared(one(lookup), flag, _ids(), _PLACES, _NUMBERS, trains=trains)

    def loop(trains):
        def lookup(table, ids, places, numbers):
            def more(number, total):
                sums = lookup_of("mean")(table, ids + number, places, numbers)
                return number + 1, total + sums

            start = [tf.constant(0), tf.zeros([_BATCH, _WIDTH])]
            return tf.while_loop(lambda i, _: i < 3, more, start)[1]

        ids = np.minimum(_ids(), _ROWS - 3)
        return compared(one(lookup), ids, _PLACES, _NUMBERS, trains=trains)

    values = {
        "safe": lambda: sparse(safe=True),
        "safe with weights": lambda: sparse("sqrtn", weighted=True, safe=True),
        "empty rows": lambda: sparse(safe=True, ids=np.where(_EXAMPLES % 3, _ids(), -1)),
        "no ids": lambda: compared(one(lookup_of("mean")), _ids()[:0], _PLACES[:0], _NUMBERS[:0]),
        "ragged sum": lambda: ragged(tf.reduce_sum),
        "ragged mean": lambda: ragged(tf.reduce_mean),
        "segments": segments,
        "axis sum": lambda: axis(tf.reduce_sum, [_BATCH, -1], 1),
        "axis mean": lambda: axis(tf.reduce_mean, [_BATCH, -1], 1),
        "axis mean of three": lambda: axis(tf.reduce_mean, [_BATCH, 2, -1], [1, 2]),
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
        "rows are used": rows_are_used,
        "width 1": lambda: sparse(width=1),
    }
    for name in _SPARSE:
        combiner, dtype = name.split(", ")
        combiner, weighted, _ = combiner.partition(" with weights")
        values[name] = lambda c=combiner, w=bool(weighted), t=dtype: sparse(
            c, w, ids=_ids(np.dtype(t))
        )

    def trained(make_model, optimizer, *arguments, **options):
        """Steps of an optimizer, stock and ours."""

        def step_of(weights, loss_of, trainer):
            @tf.function
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
            losses = [job.call(step, arguments) for _ in range(_STEPS)]
            values = [tf.convert_to_tensor(one).numpy() for one in weights]
            found[key] = coordinator.exact([losses, values])
        found["sent"] = last_sent()
        found["moved"] = [not any(_ROWS_SENT.search(one) for one in found["sent"])]
        return found

    def optimizer(name):
        import tf_keras

        module, cls = name.split()
        optimizers = (tf_keras if module == "tf_keras" else tf.keras).optimizers

        def model():
            tables = [tf.Variable(_initial(_ROWS, _WIDTH + i)) for i in range(2)]
            layer = tf.Variable(_initial(2 * _WIDTH + 1, 1))

            def loss_of(*arguments):
                sums = [lookup_of("mean")(table, *arguments) for table in tables]
                return tf.reduce_mean((tf.concat(sums, 1) @ layer - 1.0) ** 2)

            return [layer, *tables], loss_of

        make = getattr(optimizers, cls)
        return trained(model, lambda: make(0.01), _ids(), _PLACES, _NUMBERS)

    def keras_model(kind):
        keras = tf.keras

        def model():
            keras.utils.set_random_seed(1)
            inputs = [
                keras.Input([8], dtype="int32") for _ in range(2 if kind == "two inputs" else 1)
            ]
            pooled = [
                keras.layers.GlobalAveragePooling1D()(
                    keras.layers.Embedding(_ROWS, _WIDTH, mask_zero=kind == "masked")(one)
                )
                for one in inputs
            ]
            joined = pooled[0] if len(pooled) == 1 else keras.layers.Concatenate()(pooled)
            whole = keras.Model(inputs, keras.layers.Dense(1)(joined))

            def loss_of(ids):
                return tf.reduce_mean((whole([ids] * len(inputs)) - 1.0) ** 2)

            return whole.trainable_variables, loss_of

        arguments = ((_ids().reshape([_BATCH, 8]) * (np.arange(8) < 6)).astype(np.int32),)
        return trained(model, lambda: keras.optimizers.SGD(0.01), arguments, gather_on_servers=True)

    def bytes_of_steps():
        found, kept = {}, []  # (A function that is collected has its handles packed no more.)

        def counted(on, make, arguments):
            use(on)
            tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
            lookups, tables = zip(*(make() for _ in range(_TABLES)), strict=True)

            def lookup(*arguments):
                return [
                    f(*(one[number] for one in arguments))[0] for number, f in enumerate(lookups)
                ]

            step = train(lookup, [table for (table,) in tables])
            kept.append(step)
            arguments = tuple(np.stack([one] * _TABLES) for one in arguments)
            job.call(step, arguments)
            return job.counted(lambda: job.call(step, arguments))["counters"]

        for key, on in (("stock", False), ("on", True)):
            found[key] = counted(on, one(lookup_of("mean")), (_ids(), _PLACES, _NUMBERS))
            found[f"{key}, axis"] = counted(
                on,
                one(lambda table, ids: tf.reduce_sum(tf.gather(table, ids), 1)),
                (_ids().reshape([_BATCH, -1]),),
            )
        return found

    def with_unique():
        found = {}
        for key, on in (("stock", False), ("on", True)):
            use(on, fuse_lookups_unique=on)
            lookup, tables = one(lookup_of("mean"))()
            step = train(lookup, tables)
            losses = [job.call(step, (_ids(), _PLACES, _NUMBERS)) for _ in range(_STEPS)]
            found[key] = coordinator.exact([*losses, [tables[0].numpy()]])
        use(True, fuse_lookups_unique=False)
        return {**found, "moved": [not any(map(_ROWS_SENT.search, last_sent()))]}

    def with_compress():
        """Numbers that bfloat16 holds."""
        found = {}
        for key, on in (("stock", False), ("on", True)):
            use(on, compress="bfloat16")
            lookup, tables = one(lambda table, *a: 2.0 * lookup_of("sum")(table, *a))()
            tables[0].assign(np.round(tables[0]))
            step = train(lookup, tables)
            loss, sums = job.call(step, (_ids(), _PLACES, _NUMBERS))
            found[key] = coordinator.exact([loss, *sums])
        use(True, compress="")
        return {**found, "moved": [not any(map(_ROWS_SENT.search, last_sent()))]}

    def wrong(what):
        ids, places = _ids(), _PLACES.copy()
        if "id" in what:
            ids[5] = -1 if "negative" in what else _ROWS
        else:
            places[5:, 0] = -1 if "negative" in what else places[:-5, 0][::-1]
        found = {}
        for key, on in (("stock", False), ("on", True)):
            use(on)
            lookup, tables = one(lookup_of("mean"))()
            step = train(lookup, tables)
            found[key] = coordinator.caught(
                lambda step=step: job.call(step, (ids, places, _NUMBERS))
            )
            reason = re.search(r"(indices\S* = |[Ss]egment id)[^\n\[]*", found[key].get("text", ""))
            found[key]["reason"] = reason and reason[0]
        loss, _ = job.call(step, (_ids(), _PLACES, _NUMBERS))
        found["after"] = bool(np.isfinite(loss))
        return found

    cases = dict(values)
    if kind == "all":
        for name in _OPTIMIZERS:
            cases[name] = lambda name=name: optimizer(name)
        for layers in ("one input", "masked", "two inputs"):
            cases[f"keras, {layers}"] = lambda layers=layers: keras_model(layers)
        cases |= {"bytes": bytes_of_steps, "unique": with_unique, "compress": with_compress}
        for what in ("id", "negative id", "segments", "negative segment"):
            cases[f"wrong {what}"] = lambda what=what: wrong(what)
    coordinator.finish(cases)


if __name__ == "__main__":
    _main(*sys.argv[1:])
