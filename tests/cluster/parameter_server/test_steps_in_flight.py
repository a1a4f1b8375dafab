# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`steps_in_flight`: where it has an effect, how stale values get, and `repeat`."""

import logging
import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_IN_FLIGHT, _CALLS = 3, 30


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__, "grpc+fuse")


def test_values_of_one_worker_lack_few_updates():
    """Of the calls that began before a step and end after it, and of those behind it."""
    report = coordinator.run(__file__, "alone")["staleness"]
    assert report["updates"] == _CALLS + 1
    assert 0 < report["max_staleness"] <= 2 * (_IN_FLIGHT - 1)


def test_all_calls_of_all_workers_run_once(cases):
    assert cases["counts"] == {"calls": _CALLS, "workers": [0, 1]}


def test_repeated_steps_have_the_bits_of_single_ones(cases):
    """Also what they return: three numbers, three rows, or nothing."""
    found = cases["repeated"]
    assert found["weight"] == found["single"]
    assert found["ids"] == [0, 1, 2]
    assert found["nothing"] is None
    assert found["rows"] == [[0, 0], [1, 1], [2, 2]]


def test_a_second_value_is_for_the_next_coordinator(cases):
    assert cases["late"] == [
        "steps_in_flight=2 has no effect on the ClusterCoordinator that is there already: set the "
        "option before the coordinator is made"
    ]


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        ("grpc", "this process runs the protocol 'grpc', not 'grpc+fuse'"),
        ("one of grpc", "/task:0 runs the protocol 'grpc', not 'grpc+fuse'"),
    ],
)
def test_a_server_of_tensorflow_runs_one_call_at_a_time(protocol, text):
    cases = coordinator.run(__file__, protocol)
    begin = "steps_in_flight has no effect on /job:worker/replica:0/task:0, which runs one step"
    (warning,) = [one for one in cases["warnings"] if one.startswith(begin)]
    assert text in warning
    assert cases["counts"]["calls"] == _CALLS


def _main(protocol):
    import tensorflow as tf

    import tf_fuse

    warnings = []

    class Handler(logging.Handler):
        def emit(self, record):
            warnings.append(record.getMessage())

    logging.getLogger("tf_fuse").addHandler(Handler())
    tf.config.optimizer.set_experimental_options(
        {"steps_in_flight": _IN_FLIGHT, "fuse_weight_update": True}
    )
    protocols = {
        "alone": "grpc+fuse",
        "grpc": "grpc",
        "grpc+fuse": "grpc+fuse",
        "one of grpc": {
            "worker:0": "grpc",
            "worker": "grpc+fuse",
            "ps": "grpc+fuse",
            "chief": "grpc+fuse",
        },
    }
    # Functions of a stock coordinator can move in memory when two threads add some: it may crash.
    workers = 1 if protocol in {"alone", "grpc"} else 2
    job = coordinator.Job("off", workers, 1, protocol=protocols[protocol])
    (calls,) = job.variables([0], trainable=False)
    (weight,) = job.variables([tf.ones([64])], name="weight")
    index = tf.distribute.coordinator.experimental_get_current_worker_index

    @tf.function
    def count():
        with tf.control_dependencies([calls.assign_add(1)]):
            return index()

    @tf.function
    def update():
        return weight.assign_sub(0.1 * tf.cos(weight))

    def counts():
        results = [job.coordinator.schedule(count) for _ in range(_CALLS)]
        job.coordinator.join()
        workers = sorted({int(one.fetch()) for one in results})
        return {"calls": int(calls.numpy()), "workers": workers}

    def staleness():
        job.call(update)
        for _ in range(_CALLS):
            job.coordinator.schedule(update)
        job.coordinator.join()
        (server,) = tf_fuse.server_update_report()["servers"].values()
        (variable,) = server["variables"].values()
        workers = tf_fuse.server_update_report()["workers"].values()
        return {
            "updates": variable["updates"],
            "max_staleness": max(worker["max_staleness"] for worker in workers),
        }

    def repeated():
        data = job.coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(100))

        def step(iterator):
            number = next(iterator)
            weight.assign_sub(0.1 * tf.cos(weight) * tf.cast(number, tf.float32))
            return {"ids": number, "rows": tf.fill([2], number)}

        @tf.function
        def single(number):
            weight.assign_sub(0.1 * tf.cos(weight) * number)

        start = weight.numpy()
        for number in range(3):
            job.call(single, (tf.constant(float(number)),))
        expected = coordinator.exact(weight.numpy())
        weight.assign(start)
        result = job.call(tf_fuse.parameter_server.repeat(step, 3), (iter(data),))
        return {
            "single": expected,
            "weight": coordinator.exact(weight.numpy()),
            "nothing": job.call(tf_fuse.parameter_server.repeat(lambda: None, 3)),
            **{name: one.tolist() for name, one in result.items()},
        }

    def late():
        warnings.clear()
        tf.config.optimizer.set_experimental_options({"steps_in_flight": 2})
        tf.config.optimizer.set_experimental_options({"steps_in_flight": _IN_FLIGHT})
        return list(warnings)

    cases = {"counts": counts, "warnings": lambda: list(warnings)}
    if protocol == "grpc+fuse":
        cases |= {"repeated": repeated, "late": late}
    if protocol == "alone":
        cases |= {"staleness": staleness}
    coordinator.finish(cases)


if __name__ == "__main__":
    _main(*sys.argv[1:])
