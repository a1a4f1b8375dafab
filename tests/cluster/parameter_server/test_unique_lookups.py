# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The option fuse_lookups_unique in a job of one worker and two servers: values, bits and bytes."""

import sys

import numpy as np
import pytest

from tests.fault import coordinator
from tests.slow_cases import slow, slow_but

pytestmark = pytest.mark.cluster

# Payloads of frames are multiples of 64 bytes: so are ids, unique ids and rows of these sizes.
_TABLES, _ROWS, _WIDTH, _BATCH, _UNIQUE = 10, 1000, 16, 64, 16
_STEPS = 3
# By task, what it speaks; a task that speaks grpc does not have the plugin.
_JOBS = {
    "all": "grpc+fuse",
    "plain_servers": {"worker": "grpc+fuse", "ps": "grpc", "chief": "grpc+fuse"},
    "plain_worker": {"worker": "grpc", "ps": "grpc+fuse", "chief": "grpc+fuse"},
}
_KINDS = [
    "int32", "int64", "matrix", "empty", "width 1", "width 1000", "float64", "float16", "bfloat16",
    "two tables", "pieces", "sparse", "ragged", "loop",
]  # fmt: skip
# Servers add up the gradients of equal ids from zero, or by unique ids.
_EXACT = ["tf_keras.legacy Adam", "tf.compat.v1.train Adam"]
# Their workers have added them up.
_UNIQUE_ALREADY = ["tf_keras SGD", "tf_keras Adagrad"]
# They square each row, so that sums would be other numbers.
_LEFT = ["keras Adam", "keras Adagrad"]
# They multiply by a rate first, or subtract one gradient after the other.
_CLOSE = ["keras SGD", "keras SGD momentum", "keras SGD, in one operation"]


# Of the kinds by default where tasks are without the plugin.
_FAST = ("int32", "bfloat16", "pieces", "sparse", "loop")
SLOW = {
    "all": [
        "matrix", "float16", "tf.compat.v1.train Adam", "tf_keras Adagrad", "keras SGD momentum",
        "wrong lookup -1", "wrong update -1",
    ],
    "plain_servers": [kind for kind in _KINDS if kind not in _FAST],
    "plain_worker": [kind for kind in _KINDS if kind not in _FAST],
}  # fmt: skip
_JOBS_AND_KINDS = slow_but(
    [(job, kind) for job in _JOBS for kind in _KINDS], lambda one: one[1] not in SLOW[one[0]]
)


def _slow(names):
    return slow_but(names, lambda name: name not in SLOW["all"])


@pytest.fixture(scope="module")
def cases(jobs):
    return jobs("all")


@pytest.mark.parametrize(("job", "kind"), _JOBS_AND_KINDS)
def test_values_and_first_losses_have_the_same_bits(jobs, job, kind):
    case = jobs(job)[kind]
    assert "raised" not in case, case
    assert case["on"]["first"] == case["stock"]["first"]


@pytest.mark.parametrize(("job", "kind"), _JOBS_AND_KINDS)
def test_tables_are_the_same_but_for_last_bits(jobs, job, kind):
    case = jobs(job)[kind]
    for on, stock in zip(case["on"]["tables"], case["stock"]["tables"], strict=True):
        np.testing.assert_allclose(on, stock, rtol=case["bound"], atol=case["bound"])


@pytest.mark.parametrize("name", _slow([*_EXACT, *_UNIQUE_ALREADY, *_LEFT]))
def test_optimizers_whose_bits_stay(cases, name):
    case = cases[name]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]
    assert case["sends_sums"] == (name in _EXACT)


@pytest.mark.parametrize("name", _slow(_CLOSE))
def test_optimizers_whose_last_bits_change(cases, name):
    case = cases[name]
    assert "raised" not in case, case
    assert case["on"]["losses"][0] == case["stock"]["losses"][0]
    assert case["sends_sums"] and case["apart"] < 1e-6


def test_each_id_and_its_row_travel_once(cases):
    off, on = cases["bytes"]["off"], cases["bytes"]["on"]
    assert off["fused_rpcs"] == on["fused_rpcs"]
    rows = 2 * _TABLES * (_BATCH - _UNIQUE) * _WIDTH * 4  # and gradients
    ids = _TABLES * (_BATCH - _UNIQUE) * 4
    assert off["bytes"] - on["bytes"] == rows + ids


def test_ids_that_do_not_repeat_cost_no_bytes(cases):
    off, on = cases["bytes"]["off, no repetition"], cases["bytes"]["on, no repetition"]
    assert (off["bytes"], off["fused_rpcs"]) == (on["bytes"], on["fused_rpcs"])


def test_gradients_that_are_squared_travel_as_they_are(cases):
    off, on = cases["bytes"]["off, squared"], cases["bytes"]["on, squared"]
    rows = _TABLES * (_BATCH - _UNIQUE) * _WIDTH * 4  # of the lookup
    # All ids travel besides, with a description of each tensor.
    ids = _TABLES * _UNIQUE * 4
    assert 0 < rows - ids - (off["bytes"] - on["bytes"]) <= 64 * _TABLES


def test_what_travels_is_rounded_after_the_sum(cases):
    case = cases["compressed"]
    assert case["on"]["bytes"] < case["off"]["bytes"]
    np.testing.assert_array_equal(case["table"], case["expected"])


@pytest.mark.parametrize("row", [slow(-1), _ROWS])
@pytest.mark.parametrize("what", ["lookup", "update"])
def test_wrong_ids_have_the_same_error(cases, row, what):
    case = cases[f"wrong {what} {row}"]
    for one in (case["stock"], case["on"]):
        assert one["raised"] == "InvalidArgumentError"
        assert f"= {row} is not in [0, {_ROWS})" in one["text"]
    assert case["after"] is True  # The job goes on.


def test_functions_are_the_same_when_it_is_off(cases):
    assert cases["operations"]["off"] == []
    assert cases["operations"]["on"] == ["TfFuse>PlaceRows", "TfFuse>UniqueIds"]


def _initial(rows, width, dtype=np.float32):
    return np.random.default_rng(rows + width).normal(size=[rows, width]).astype(dtype)


def _ids(count=_BATCH, unique=_UNIQUE, seed=1):
    numbers = np.random.default_rng(seed).permutation(_ROWS)[:unique]
    return np.resize(numbers, [count]).astype(np.int32)


def _main(kind):
    import tensorflow as tf

    from tests.cluster.parameter_server import update_cases

    job = coordinator.Job("on", 1, 2, protocol=_JOBS[kind])

    def use(on, **more):
        tf.config.optimizer.set_experimental_options(
            {"do_fuse_recv": True, "fuse_lookups_unique": on, **more}
        )

    def use_stock_or(on, **more):
        """Without our options the graphs are stock TensorFlow's."""
        use(on, do_fuse_recv=on, **{key: on and value for key, value in more.items()})

    def variable(value, strategy=job.strategy):
        with strategy.scope():
            return tf.Variable(value)

    def train(lookup, tables):
        """A step: rows, a loss of them, and SGD by hand."""

        @tf.function
        def step(*ids):
            with tf.GradientTape() as tape:
                rows = lookup(*ids)
                loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float32) ** 2) for r in rows])
            pieces = [piece for one in tables for piece in getattr(one, "variables", [one])]
            for piece, gradient in zip(pieces, tape.gradient(loss, pieces), strict=True):
                rate = tf.cast(0.1, gradient.dtype)
                if isinstance(gradient, tf.IndexedSlices):
                    change = rate * gradient.values
                    piece.scatter_sub(tf.IndexedSlices(change, gradient.indices))
                else:  # (A loop has added it up.)
                    piece.assign_sub(rate * gradient)
            return loss, rows

        return step

    def compared(make, *ids, bound=1e-6):
        found = {"bound": bound}
        for name, on in (("stock", False), ("on", True)):
            use_stock_or(on)
            lookup, tables = make()
            step = train(lookup, tables)
            first = job.call(step, ids)
            for _ in range(_STEPS - 1):
                job.call(step, ids)
            values = [np.asarray(tf.convert_to_tensor(one), np.float64) for one in tables]
            found[name] = {
                "first": coordinator.exact(first),
                "tables": [v.tolist() for v in values],
            }
        return found

    def one(rows=_ROWS, width=_WIDTH, dtype=np.float32, **options):
        def make():
            table = variable(tf.cast(_initial(rows, width), dtype), **options)
            return lambda ids: [tf.gather(table, ids)], [table]

        return make

    def two():
        # The second one is on the other server, the third beside the first.
        tables = [variable(_initial(100 + number, 8)) for number in range(3)]
        return lambda ids: [tf.gather(table, ids) for table in tables], tables

    def pieces():
        strategy = tf.distribute.ParameterServerStrategy(
            job.cluster.resolver(),
            tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
        )
        table = variable(_initial(_ROWS, _WIDTH), strategy)
        return lambda ids: [tf.nn.embedding_lookup(table, ids)], [table]

    def sparse():
        table = variable(_initial(_ROWS, _WIDTH))

        def lookup(ids):
            places = tf.stack([tf.range(_BATCH) // 4, tf.range(_BATCH) % 4], axis=1)
            features = tf.SparseTensor(tf.cast(places, tf.int64), ids, [_BATCH // 4, 4])
            return [
                tf.nn.safe_embedding_lookup_sparse(table, features, combiner=combiner)
                for combiner in ("sum", "mean", "sqrtn")
            ]

        return lookup, [table]

    def ragged():
        table = variable(_initial(_ROWS, _WIDTH))

        def lookup(ids):
            rows = tf.RaggedTensor.from_row_splits(ids, [0, 3, 3, 10, _BATCH])
            return [tf.reduce_sum(tf.nn.embedding_lookup(table, rows), axis=1)]

        return lookup, [table]

    def loop():
        table = variable(_initial(_ROWS, _WIDTH))

        def lookup(ids):
            def more(number, total):
                rows = tf.gather(table, ids + number)
                return number + 1, total + rows

            total = tf.zeros([_BATCH, _WIDTH])
            return [tf.while_loop(lambda i, _: i < 3, more, [tf.constant(0), total])[1]]

        return lookup, [table]

    ids = _ids()
    small = np.asarray(_ids() % 90, np.int32)
    values = {
        "int32": lambda: compared(one(), ids),
        "int64": lambda: compared(one(), ids.astype(np.int64)),
        "matrix": lambda: compared(one(), ids.reshape([4, -1])),
        "empty": lambda: compared(one(), ids[:0]),
        "width 1": lambda: compared(one(width=1), ids),
        "width 1000": lambda: compared(one(rows=100, width=1000), small),
        "float64": lambda: compared(one(dtype=tf.float64), ids, bound=1e-15),
        "float16": lambda: compared(one(dtype=tf.float16), ids, bound=1e-2),
        "bfloat16": lambda: compared(one(dtype=tf.bfloat16), ids, bound=1e-1),
        "two tables": lambda: compared(two, small),
        "pieces": lambda: compared(pieces, ids),
        "sparse": lambda: compared(sparse, ids),
        "ragged": lambda: compared(ragged, ids),
        "loop": lambda: compared(loop, np.minimum(ids, _ROWS - 3)),
    }

    def optimizer(name):
        found = {}
        optimizer, fused, _ = name.partition(", in one operation")
        for key, on in (("stock", False), ("on", True)):
            use_stock_or(on, fuse_weight_update=bool(fused))
            model = update_cases.Model(job.strategy, update_cases.makers()[optimizer])
            losses = [
                job.call(model.step, (tf.constant(update_cases.IDS[i % 2]),)) for i in range(6)
            ]
            weights = [*model.weights, *update_cases.variables_of(model.optimizer)]
            arrays = [tf.convert_to_tensor(one).numpy() for one in weights]
            found[key] = {"losses": coordinator.exact(losses), "weights": arrays}
        report = last_report()
        slots = [slot for group in report["groups"] for slot in group["slots"]]
        slots += [skip["slot"] for skip in report["skips"]]
        found["sends_sums"] = any("/sums" in slot["sender_node"] for slot in slots)
        found["apart"] = max(
            float(np.max(np.abs(a.astype(float) - b))) if a.size else 0.0
            for a, b in zip(found["on"]["weights"], found["stock"]["weights"], strict=True)
        )
        for key in ("stock", "on"):
            found[key]["weights"] = coordinator.exact(found[key]["weights"])
        return found

    def last_report():
        import tf_fuse

        return tf_fuse.cluster_reports()["/job:worker/replica:0/task:0"][-1]

    def training(tables, squares=False):
        @tf.function
        def step(ids):
            for table, of_table in zip(tables, tf.unstack(ids), strict=True):
                change = tf.math.sin(table.sparse_read(of_table))
                with tf.device(table.device):  # (Grappler does sin and square as one there.)
                    change = tf.abs(change) * change if squares else change
                table.scatter_sub(tf.IndexedSlices(change, of_table))

        return step

    def steps(on, ids, squares=False, **more):
        use(on, **more)
        tables = [variable(_initial(_ROWS, _WIDTH)) for _ in range(_TABLES)]
        step = training(tables, squares)
        arguments = (np.stack([ids] * _TABLES),)
        job.call(step, arguments)
        counted = job.counted(lambda: job.call(step, arguments))["counters"]
        return step, counted

    def bytes_of_steps():
        found, kept = {}, []  # (A function that is collected has its handles packed no more.)
        for key, on in (("off", False), ("on", True)):
            for suffix, arguments in (
                ("", (ids,)),
                (", no repetition", (_ids(unique=_BATCH),)),
                (", squared", (ids, True)),
            ):
                step, found[key + suffix] = steps(on, *arguments)
                kept.append(step)
        return found

    def compressed():
        found = {}
        for key, on in (("off", False), ("on", True)):
            _, found[key] = steps(on, ids, compress="bfloat16")
        use(True, compress="bfloat16")
        table = variable(np.zeros([_ROWS, 1], np.float32))

        @tf.function
        def step(ids, gradient):
            table.scatter_sub(tf.IndexedSlices(tf.square(gradient), ids))

        # The sum, 257, is rounded to 256, and then each of its terms would stay unchanged.
        job.call(step, (np.array([5, 5, 7], np.int32), np.array([[16], [1], [3]], np.float32)))
        use(True, compress="")
        found["table"] = table.numpy()[[5, 7], 0].tolist()
        found["expected"] = [-256.0, -9.0]
        return found

    def wrong(what, row):
        table = variable(_initial(_ROWS, _WIDTH))

        @tf.function
        def step(ids):
            if what == "lookup":
                return tf.reduce_sum(table.sparse_read(ids))
            change = tf.ones([tf.size(ids), _WIDTH])
            table.scatter_sub(tf.IndexedSlices(change, ids))
            return tf.constant(0.0)

        found = {}
        for key, on in (("stock", False), ("on", True)):
            use_stock_or(on)
            step = tf.function(step.python_function)
            found[key] = coordinator.caught(
                lambda step=step: job.call(step, (np.array([3, 3, row], np.int32),))
            )
        found["after"] = bool(np.isfinite(job.call(step, (ids,))))
        return found

    def operations():
        found = {}
        for key, on in (("off", False), ("on", True)):
            steps(on, ids)
            groups = last_report().get("operation_groups", [])
            names = {op for group in groups for op in group["operations"]}
            found[key] = sorted(names & {"TfFuse>PlaceRows", "TfFuse>UniqueIds"})
        return found

    cases = dict(values)
    if kind == "all":
        for name in (*_EXACT, *_UNIQUE_ALREADY, *_LEFT, *_CLOSE):
            cases[name] = lambda name=name: optimizer(name)
        cases |= {"bytes": bytes_of_steps, "compressed": compressed, "operations": operations}
        for what in ("lookup", "update"):
            for row in (-1, _ROWS):
                cases[f"wrong {what} {row}"] = lambda what=what, row=row: wrong(what, row)
    coordinator.finish(cases, SLOW[kind])


if __name__ == "__main__":
    _main(*sys.argv[1:])
