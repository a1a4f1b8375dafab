# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of `shard_weight_update` on parameter servers, alone and left out: what runs, values."""

import sys

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow_but

pytestmark = pytest.mark.cluster

_SERVERS = 2
_KINDS = ("whole", "pieces")
# What each case sets, beside what those before it have set; and which of (placement, gathers on
# servers, updates as one operation) are on then.
_CASES = {
    "parts": {
        "placement": ({"place_variables": True}, (True, False, False)),
        "both": ({"gather_on_servers": True}, (True, True, False)),
        "gathers": ({"place_variables": False}, (False, True, False)),
        "none": ({"gather_on_servers": False}, (False, False, False)),
    },
    "umbrella": {
        "all": ({"shard_weight_update": True}, (True, True, True)),
        "no_placement": ({"place_variables": False}, (False, True, True)),
        "only_fused": ({"gather_on_servers": False}, (False, False, True)),
        "no_gathers": ({"place_variables": True}, (True, False, True)),
        "not_fused": (
            {"gather_on_servers": True, "fuse_weight_update": False},
            (True, True, False),
        ),
    },
}
_NAMES = [(group, name) for group, cases in _CASES.items() for name in cases]
# In pieces, by default each part once alone, and all of them.
_FAST_IN_PIECES = ("placement", "gathers", "all", "only_fused")
_CASES_OF_KINDS = slow_but(
    [(group, name, kind) for group, name in _NAMES for kind in _KINDS],
    lambda one: one[2] == "whole" or one[1] in _FAST_IN_PIECES,
)


def _slow(group):
    """Cases of a group that only slow tests ask for."""
    return [f"{name}_pieces" for name in _CASES.get(group, ()) if name not in _FAST_IN_PIECES]


@pytest.fixture(scope="module")
def runs():
    return {
        group: coordinator.Cases(__file__, group, slow=_slow(group)) for group in ("stock", *_CASES)
    }


@pytest.mark.parametrize(("group", "name", "kind"), _CASES_OF_KINDS)
def test_values_have_the_bits_of_stock(runs, group, name, kind):
    stock, ours = runs["stock"]["whole"], runs[group][f"{name}_{kind}"]
    assert "raised" not in stock and "raised" not in ours, (stock, ours)
    assert len(set(stock["losses"])) == 4
    assert ours["losses"] == stock["losses"]
    assert ours["weights"] == stock["weights"]


@pytest.mark.parametrize(("group", "name", "kind"), _CASES_OF_KINDS)
def test_each_part_is_on_as_it_was_set(runs, group, name, kind):
    is_placed, is_gathered, is_fused = _CASES[group][name][1]
    case = runs[group][f"{name}_{kind}"]
    pieces = _SERVERS if kind == "pieces" else 1
    assert case["table"] == pieces
    assert case["is_placed"] is is_placed
    assert case["floats"] == ([408, 408] if is_placed else runs["stock"]["whole"]["floats"])
    assert case["gathers"] == ({"ResourceGather": pieces} if is_gathered else {"GatherV2": 1})
    assert (case["fused"] > 0) is is_fused


def _main(group):
    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job("stock" if group == "stock" else "on", 1, _SERVERS)
    if group != "stock":
        import tf_fuse
        from tests.unit.parameter_server.lookups.test_matmul import needed

    def make():
        keras.utils.set_random_seed(3)
        # (Pieces of a multiple of 16 numbers: TensorFlow's own updates have the bits of wholes.)
        model = keras.Sequential(
            [
                keras.layers.Embedding(96, 16, name="table"),
                keras.layers.Flatten(),
                keras.layers.Dense(64, name="hidden"),
                keras.layers.Dense(1, name="last"),
            ]
        )
        model.build((None, 5))
        return model

    def floats():
        """How many floats each server has; stock puts the larger variables on one."""
        strategy = tf.distribute.ParameterServerStrategy(job.cluster.resolver())
        with strategy.scope():
            made = [tf.Variable(tf.zeros([97 if i % 2 == 0 else 5])) for i in range(16)]
        sums = [0] * _SERVERS
        for one in made:
            sums[tf.DeviceSpec.from_string(one.device).task] += one.shape.num_elements()
        return sums

    def case(settings, is_split):
        def run():
            tf.config.optimizer.set_experimental_options(settings)
            partitioner = None
            if is_split:
                kinds = tf.distribute.experimental.partitioners
                partitioner = kinds.FixedShardsPartitioner(_SERVERS)
            strategy = tf.distribute.ParameterServerStrategy(
                job.cluster.resolver(), variable_partitioner=partitioner
            )
            found = tf.config.optimizer.get_experimental_options()
            with strategy.scope():
                model = make()
                weights = model.trainable_variables
                is_placed = found.get("place_variables", found.get("shard_weight_update"))
                if is_split and not is_placed:  # Stock Keras takes pieces for variables only.
                    weights = tf_fuse.parameter_server.pieces(weights)
                optimizer = keras.optimizers.Adam(0.01)
                optimizer.build(weights)
            ids = tf.constant([[0, 95, 48, 47, 7], [7, 7, 50, 1, 0]])

            def replica():
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((model(ids) - 1.0) ** 2)
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
                return loss

            @tf.function
            def step():
                return strategy.run(replica)

            @tf.function
            def read():
                return tf.reduce_sum(model.layers[0](ids))

            loop = tf.distribute.coordinator.ClusterCoordinator(strategy)

            def call(function):
                result = loop.schedule(function)
                loop.join()
                return result.fetch()

            before = _fused()
            losses = [float(call(step)) for _ in range(3)] + [float(call(read))]
            table = model.layers[0].embeddings.value
            result = {
                "losses": [loss.hex() for loss in losses],
                "weights": [coordinator.exact(_whole(v.value)) for v in model.trainable_variables],
                "floats": floats(),
                "table": len(getattr(table, "variables", [table])),
            }
            if group != "stock":
                kinds = needed(read.get_concrete_function().graph)
                report = tf_fuse.parameter_server.placement_report(strategy)
                result |= {
                    "is_placed": bool(report["variables"]),
                    "gathers": {k: kinds.count(k) for k in kinds if "Gather" in k},
                    "fused": _fused() - before,
                }
            return result

        return run

    def _whole(value):
        parts = getattr(value, "variables", [value])
        return np.concatenate([np.asarray(part) for part in parts])

    def _fused():
        """How many updates are one operation so far."""
        if group == "stock":
            return 0
        return sum(one["updates"] for one in tf_fuse.weight_update_report()["operations"])

    if group == "stock":
        coordinator.finish({"whole": case({}, False)})
    cases, settings = {}, {}
    for name, (more, _) in _CASES[group].items():
        settings = settings | more
        cases |= {f"{name}_{kind}": case(settings, kind == "pieces") for kind in _KINDS}
    coordinator.finish(cases, _slow(group))


if __name__ == "__main__":
    _main(*sys.argv[1:])
