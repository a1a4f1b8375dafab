# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calls that are copies of the one before: which are, what they return, and what they keep."""

import re
import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_CALLS = 5
# By case, how many calls of `_CALLS` looked for their function.
_LOOKED = {
    "same": 1,
    "literal": 1,
    "two_iterators": 2,
    "keywords": _CALLS,
    "tensors": _CALLS,
    "other_literals": _CALLS,
    "other_device": _CALLS,
    "in_scope": 1,
    "table": _CALLS,
    "traced_again": 2,
    "off": _CALLS,
    "both_at_once": 1,
}
# How many took their inputs out of their arguments again. The first is TensorFlow's, the second
# notes the inputs.
_BOUND = dict.fromkeys(_LOOKED, _CALLS) | {
    "same": 2,
    "literal": 2,
    "in_scope": 2,
    "two_iterators": 4,
    "traced_again": 3,
}


@pytest.fixture(scope="module")
def stock():
    return coordinator.run(__file__, "stock")


@pytest.fixture(scope="module")
def found():
    return coordinator.run(__file__, "on")


@pytest.mark.parametrize("case", list(_LOOKED))
def test_values_are_those_of_tensorflow(found, stock, case):
    assert found[case]["values"] == stock[case]["values"]


@pytest.mark.parametrize("case", list(_LOOKED))
def test_calls_that_are_alike_look_once_for_their_function(found, stock, case):
    assert found[case]["looked"] == _LOOKED[case]
    assert stock[case]["looked"] == _CALLS


@pytest.mark.parametrize("case", list(_LOOKED))
def test_calls_that_are_alike_take_inputs_out_of_their_arguments_twice(found, stock, case):
    assert found[case]["bound"] == _BOUND[case]
    assert stock[case]["bound"] == _CALLS


def test_results_of_every_kind_are_those_of_tensorflow(found, stock):
    """Structures, strings, sparse and ragged tensors, numbers of Python, handles, nothing."""
    assert found["kinds"] == stock["kinds"]


def test_an_error_of_a_step_is_that_of_tensorflow(found, stock):
    """And the calls after it run."""
    assert found["error"] == stock["error"]
    assert found["error"]["raised"] == "InvalidArgumentError" and found["error"]["text"]


def test_what_nobody_holds_is_freed(found, stock):
    assert found["freed"] == stock["freed"] == {"function": True, "iterator": True}


def test_every_thread_gets_a_result(found):
    assert found["threads"] == [[float(number)] * 3 for number in range(_CALLS)]


def test_a_worker_runs_its_next_call_while_what_the_last_one_returned_comes(found):
    """Two results at most come and wait; then it waits, too. All calls count until then."""
    assert found["late"] == {"ran": 3, "done": False, "values": [0, 1, 2, 3, 4]}


def test_no_call_logs_that_something_is_deprecated(found):
    assert [text for text in found["warned"] if "deprecated" in text] == []


def _main(mode):
    import functools
    import gc
    import logging
    import threading
    import weakref

    import tensorflow as tf
    from tensorflow.core.function.polymorphism import function_type
    from tensorflow.python.distribute.coordinator import cluster_coordinator

    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    job = coordinator.Job(mode, 1, 1)
    (weight,) = job.variables([tf.ones([4])], name="weight")
    looks = []
    stock = cluster_coordinator.Closure.__init__

    def init(self, function, *args, **kwargs):
        looks.append(function)
        stock(self, function, *args, **kwargs)

    cluster_coordinator.Closure.__init__ = init
    bound = []
    stock_unpack = function_type.FunctionType.unpack_inputs

    def unpack(self, parameters):
        bound.extend({"numbers", "second"} & set(self.parameters))
        return stock_unpack(self, parameters)

    function_type.FunctionType.unpack_inputs = unpack

    def iterator():
        make = lambda: tf.data.Dataset.range(1000)  # noqa: E731
        return iter(job.coordinator.create_per_worker_dataset(make))

    def made(call):
        """Makes calls, each by its number; returns their results, and how many were looked up."""
        looks.clear()
        bound.clear()
        results = [call(number) for number in range(_CALLS)]
        job.coordinator.join()
        looked = sum(not hasattr(one, "structured_outputs") for one in looks)
        counts = {"looked": looked, "bound": len(bound)}
        return {"values": coordinator.exact([one.fetch() for one in results]), **counts}

    def scaled(numbers, factor):
        number = tf.cast(next(numbers), tf.float32)
        weight.assign_add(tf.fill([4], number * tf.cast(factor, tf.float32)))
        return {"sum": tf.reduce_sum(weight.read_value()), "number": number}

    def step(numbers):
        return scaled(numbers, 1.0)

    def schedule(*args, **kwargs):
        return job.coordinator.schedule(*args, **kwargs)

    def same():
        function, data = tf.function(step), iterator()
        return made(lambda _: schedule(function, args=(data,)))

    def literal():
        function, data = tf.function(scaled), iterator()
        return made(lambda _: schedule(function, args=(data, 2)))

    def two_iterators():
        function, both = tf.function(step), (iterator(), iterator())
        return made(lambda number: schedule(function, args=(both[number > 2],)))

    def keywords():
        function, data = tf.function(scaled), iterator()
        return made(lambda _: schedule(function, args=(data,), kwargs={"factor": 3.0}))

    def tensors():
        function, data = tf.function(scaled), iterator()
        return made(lambda number: schedule(function, args=(data, tf.constant(number))))

    def other_literals():
        function, data = tf.function(scaled), iterator()
        factors = (1, 1.0, True, -0.0, 0.0)
        return made(lambda number: schedule(function, args=(data, factors[number])))

    def other_device():
        function, data = tf.function(step), iterator()

        def call(number):
            with tf.device(f"/device:CPU:{number % 2}" if number % 2 else None):
                return schedule(function, args=(data,))

        return made(call)

    def in_scope():
        function, data = tf.function(step), iterator()

        def call(_):
            with job.strategy.scope():
                return schedule(function, args=(data,))

        return made(call)

    def table():
        with job.strategy.scope():
            found = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tf.range(9), tf.range(9) * 10), -1
            )
        data = iterator()

        @tf.function
        def function(numbers):
            return found.lookup(tf.cast(next(numbers), tf.int32))

        return made(lambda _: schedule(function, args=(data,)))

    def traced_again():
        function, data = tf.function(step), iterator()

        def call(number):
            if number == 2:
                function.get_concrete_function(tf.data.IteratorSpec(tf.TensorSpec([], tf.int32)))
            return schedule(function, args=(data,))

        return made(call)

    def off():
        function, data = tf.function(step), iterator()
        schedule(function, args=(data,))
        schedule(function, args=(data,))
        job.coordinator.join()
        if mode == "on":
            tf.config.optimizer.set_experimental_options({"do_fuse_recv": False})
        result = made(lambda _: schedule(function, args=(data,)))
        if mode == "on":
            tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
        return result

    def both_at_once():
        # TensorFlow orders inputs by the names of parameters.
        @tf.function
        def function(second, first):
            next(first)
            return {"first": next(first), "second": next(second)}

        both = iterator(), iterator()
        return made(lambda _: schedule(function, args=both))

    def kinds():
        data = iterator()
        results = {
            "nested": lambda n: {"a": [n, (n + 1, tf.fill([2, 3], n))], "b": {}},
            "text": lambda n: tf.strings.as_string(tf.fill([3], n)),
            "sparse": lambda n: tf.sparse.from_dense([n, 0, n]),
            "ragged": lambda n: tf.RaggedTensor.from_row_lengths([n, n, n], [1, 2]),
            "booleans": lambda n: n > 1,
            "empty": lambda n: tf.zeros([0, 3]),
            "nothing": lambda n: None,
            "python": lambda n: [3, n],
            "large": lambda n: tf.fill([300, 1000], n),
        }
        values = {}
        for name, result in results.items():
            function = tf.function(functools.partial(lambda f, numbers: f(next(numbers)), result))
            fetched = [schedule(function, args=(data,)) for _ in range(3)]
            job.coordinator.join()
            values[name] = []
            for one in fetched:
                got = one.get()
                flat = tf.nest.flatten(got, expand_composites=True)
                kinds = [[type(part).__name__, getattr(part, "device", "")] for part in flat]
                numbers = [part.numpy() if hasattr(part, "numpy") else part for part in flat]
                shown = [None if part is None else coordinator.exact(part) for part in numbers]
                values[name].append([type(got).__name__, kinds, shown])
        return values

    def error():
        data = iterator()

        @tf.function
        def function(numbers):
            number = next(numbers)
            tf.debugging.assert_less(number, tf.constant(3, tf.int64), "too many")
            return number

        def run():
            for _ in range(_CALLS):
                schedule(function, args=(data,))
            job.coordinator.join()

        caught = coordinator.caught(run)
        caught["text"] = re.findall(r"assertion failed: .*?\[y [^]]*\] \[\d+\]", caught["text"])[:1]
        other = made(lambda _: schedule(tf.function(step), args=(iterator(),)))
        return {**caught, "after": other["values"]}

    def freed():
        function, data = tf.function(step), iterator()
        for _ in range(_CALLS):
            schedule(function, args=(data,))
        job.coordinator.join()
        looks.clear()

        def is_freed(held):
            return coordinator.wait_until(lambda: gc.collect() >= 0 and held() is None)

        dropped = weakref.ref(data)
        del data
        found = {"iterator": is_freed(dropped)}  # while its function is there
        dropped = weakref.ref(function)
        del function
        return {**found, "function": is_freed(dropped)}

    def threads():
        function, data = tf.function(lambda numbers: tf.cast(next(numbers), tf.float32)), iterator()
        results = [schedule(function, args=(data,)) for _ in range(_CALLS)]
        got = [[] for _ in results]

        def get():
            for mine, result in zip(got, results, strict=True):
                mine.append(float(result.get()))

        waiting = [threading.Thread(target=get) for _ in range(3)]
        for one in waiting:
            one.start()
        for one in waiting:
            one.join()
        return got

    def late():
        from tf_fuse._tensorflow.variables import coordinator_results

        (count,) = job.variables([0], trainable=False)
        function = tf.function(lambda: tf.identity(count.assign_add(1)) - 1)
        first = [schedule(function)]
        job.coordinator.join()
        kind = coordinator_results.class_of(as_arrays=False, late=True)
        stock, may_come = kind.bring, threading.Event()
        kind.bring = lambda self: may_come.wait() and stock(self)
        results = first + [schedule(function) for _ in range(4)]
        # One comes, one waits, and the next one's worker waits.
        ran = coordinator.wait_until(lambda: int(count.numpy()) == 4) and int(count.numpy()) - 1
        done = job.coordinator.done()
        may_come.set()
        job.coordinator.join()
        kind.bring = stock
        return {"ran": ran, "done": done, "values": [int(one.fetch()) for one in results]}

    def warned():
        return warnings

    cases = [same, literal, two_iterators, keywords, tensors, other_literals, other_device]
    cases += [
        in_scope,
        table,
        traced_again,
        off,
        both_at_once,
        kinds,
        error,
        freed,
        threads,
        warned,
    ]
    cases += [late] * (mode == "on")
    coordinator.finish({case.__name__: case for case in cases})


if __name__ == "__main__":
    _main(*sys.argv[1:])
