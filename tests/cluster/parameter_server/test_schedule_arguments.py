# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`ClusterCoordinator.schedule`, where a call copies the one before: outcomes are stock's."""

import contextlib
import gc
import sys
import weakref

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_CASES = ("arguments", "of_subclasses", "wrong_arguments", "while_tracing", "cancelled")


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in ("stock", "on")}


@pytest.mark.parametrize("case", _CASES)
def test_outcome_is_that_of_stock(runs, case):
    assert runs["on"][case] == runs["stock"][case]
    assert "raised" not in runs["on"][case]


def test_a_cancelled_call_keeps_nothing(runs):
    assert runs["on"]["cancelled"] == {"error": "CancelledError", "alive": []}


class _Int(int):
    def __repr__(self):
        return "an int"


class _Str(str):
    def __repr__(self):
        return "a str"


def _main(mode):
    import tensorflow as tf

    job = coordinator.Job(mode, workers=1, ps=1)

    def returned(function, arguments):
        """What calls with each of some arguments return; each is called twice."""
        return [job.call(function, (one,)).decode() for one in arguments for _ in range(2)][::2]

    def arguments():
        @tf.function
        def text(value):
            return tf.constant(repr(value))

        values = returned(text, (1, True, 1.0, 0.0, -0.0, "a", None))
        return {"returned": values, "traces": text.experimental_get_tracing_count()}

    def of_subclasses():
        @tf.function
        def text(value):
            return tf.constant(f"{value:d}" if isinstance(value, int) else str(value))

        return {"returned": returned(text, [_Int(1), _Int(2), _Str("a"), _Str("b")])}

    def wrong_arguments():
        @tf.function
        def text(value):
            return tf.constant(repr(value))

        data = job.coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(1))
        found = []
        for one in (5, iter(data), (1, 2), (), "a", {"b": 1}, [7]):
            try:
                found.append(job.call(text, one).decode())
            except TypeError as error:
                found.append(str(error))
        return {"found": found}

    def while_tracing():
        """A function that is traced schedules others, and itself."""
        results = []

        @tf.function
        def inner():
            return tf.constant(0)

        @tf.function
        def outer(count):
            with tf.init_scope():
                results.append(job.coordinator.schedule(inner))
                if count:
                    results.append(job.coordinator.schedule(outer, args=(count - 1,)))
            return tf.constant(count)

        results += [job.coordinator.schedule(outer, args=(one,)) for one in (2, 2, 1, 3)]
        job.coordinator.join()
        return {"returned": [int(one.fetch()) for one in results]}

    def cancelled():
        @tf.function
        def fails(iterator, text):
            with tf.control_dependencies([next(iterator)]):
                return tf.strings.to_number(tf.constant(text))

        data = job.coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(9).repeat())
        iterator = iter(data)
        job.call(fails, (iterator, "1"))
        bad = job.coordinator.schedule(fails, args=(iterator, "x"))
        queue = job.coordinator._cluster.closure_queue
        coordinator.wait_until(lambda: queue._error)
        # Nothing has asked for the error: what is put into the queue now is cancelled.
        put, seen = queue.put, []

        def see(closure, tag=None):
            seen.append(closure._output_remote_value_ref())
            put(closure, tag)

        queue.put = see
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            job.coordinator.schedule(fails, args=(iterator, "x"))
        queue.put = put
        (result,) = seen
        held = {"iterator": weakref.ref(iterator), "data": weakref.ref(data)}
        del bad, iterator, data, fails
        gc.collect()
        return {
            "error": type(result._error).__name__,
            "alive": [name for name, one in held.items() if one()],
        }

    cases = (arguments, of_subclasses, wrong_arguments, while_tracing, cancelled)
    coordinator.finish(dict(zip(_CASES, cases, strict=True)))


if __name__ == "__main__":
    _main(sys.argv[1])
