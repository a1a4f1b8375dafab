# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The options of ConfigProto.rpc_options: values are those of stock, and receives are still fused.

One worker, one server, both with all of the options; sessions of a client with one option each, and
a coordinator with all of them.
"""

import hashlib
import json
import sys

import pytest

from tests.fault import coordinator, table

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_STEPS = 3
_SHARDS = 6
_OPTIONS = {
    "no_option": "",
    "cache_rpc_response": "cache_rpc_response: true",
    "disable_session_connection_sharing": "disable_session_connection_sharing: true",
    "num_channels_per_target": "num_channels_per_target: 4",
    "compression_gzip": 'compression_algorithm: "gzip" compression_level: 2',
    "compression_deflate": 'compression_algorithm: "deflate" compression_level: 1',
}
_ALL = (
    "cache_rpc_response: true disable_session_connection_sharing: true num_channels_per_target: 4 "
    'compression_algorithm: "gzip" compression_level: 2'
)


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in ("stock", "on")}


@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case):
    table.check(__file__, case, runs["stock"][case], runs["on"][case])


def test_every_option_has_a_row():
    assert sorted(table.cases(__file__)) == sorted([*_OPTIONS, "all_in_a_coordinator"])


def test_values_are_stocks_to_the_last_bit(runs):
    for case in table.cases(__file__):
        assert runs["on"][case]["values"] == runs["stock"][case]["values"]
    values = {str(runs["on"][case]["values"]) for case in _OPTIONS}
    assert len(values) == 1  # an option changes no value
    assert len(set(runs["on"]["no_option"]["values"])) == _STEPS  # each step has its own


@pytest.mark.parametrize("case", sorted(_OPTIONS))
def test_receives_are_fused_under_each_option(runs, case):
    counted = runs["on"][case]["fused_rpcs"]
    assert counted == runs["on"]["no_option"]["fused_rpcs"] >= 2 * _STEPS


def test_receives_of_a_coordinator_with_all_options_are_fused(runs):
    assert runs["on"]["all_in_a_coordinator"]["fused_rpcs"] >= 2 * _STEPS


def test_nothing_is_left_pending(runs):
    assert runs["on"]["left"] == {"pending_requests": 0, "pending_bytes": 0}


def _main(mode):
    import numpy as np
    import tensorflow as tf
    from google.protobuf import text_format
    from tensorflow.python.eager import context

    v1 = tf.compat.v1

    def config(options):
        return text_format.Parse(f"rpc_options {{ {options} }}", v1.ConfigProto())

    context.context()._config = config(_ALL)
    job = coordinator.Job(mode, 1, 1, session_config=f"rpc_options {{ {_ALL} }}")
    protocol = "grpc" if mode == "stock" else "grpc+fuse"
    target = f"{protocol}://{job.cluster.cluster_spec['worker'][0]}"
    numbers = np.random.default_rng(1).normal(size=(_SHARDS, 64, 64)).astype(np.float32)

    def graph():
        """Weights on the server; the worker reads them, and the server adds what it computes."""
        with tf.device("/job:ps/task:0"):
            weights = [v1.get_variable(f"w{i}", initializer=x) for i, x in enumerate(numbers)]
        with tf.device("/job:worker/task:0"):
            read = [tf.tanh(w.read_value()) for w in weights]
            updates = [w.assign_sub(0.1 * x) for w, x in zip(weights, read, strict=True)]
            with tf.control_dependencies(updates):
                return [tf.identity(x) for x in read]

    def fused():
        return 0 if mode == "stock" else job.total()["fused_rpcs"]

    def in_session(name):
        def run():
            own = config(_OPTIONS[name])
            if mode == "on":
                import tf_fuse

                own = tf_fuse.session_config(own)
            values = []
            with tf.Graph().as_default(), v1.variable_scope(name, use_resource=True):
                fetches = graph()
                # The server keeps variables by their names: each case has its own.
                with v1.Session(target, config=own) as session:
                    session.run(v1.global_variables_initializer())
                    before = fused()
                    values = [session.run(fetches) for _ in range(_STEPS)]
                    counted = fused() - before
            return {"values": _digests(values), "fused_rpcs": counted}

        return _observed(run)

    def in_coordinator():
        weights = job.variables(list(numbers))

        @tf.function
        def step():
            read = [tf.tanh(w.read_value()) for w in weights]
            for w, x in zip(weights, read, strict=True):
                w.assign_sub(0.1 * x)
            return [tf.identity(x) for x in read]

        def run():
            before = fused()
            values = [job.call(step) for _ in range(_STEPS)]
            return {"values": _digests(values), "fused_rpcs": fused() - before}

        return _observed(run)

    def left():
        if mode == "stock":
            return None
        names = ("pending_requests", "pending_bytes")
        coordinator.wait_until(lambda: not any(job.total()[name] for name in names))
        return {name: job.total()[name] for name in names}

    cases = {name: lambda name=name: in_session(name) for name in _OPTIONS}
    coordinator.finish(cases | {"all_in_a_coordinator": in_coordinator, "left": left})


def _digests(values):
    """A digest of each step's values, to the last bit."""
    exact = [json.dumps(coordinator.exact(step)) for step in values]
    return [hashlib.sha256(text.encode()).hexdigest() for text in exact]


def _observed(run):
    done = {}
    observed = table.observe(lambda: done.update(run()), lambda _: "the values")
    del observed["seconds"]  # nothing goes wrong here, so there is no time to tell
    return observed | done


if __name__ == "__main__":
    _main(sys.argv[1])
