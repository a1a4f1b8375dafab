# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What updates take is measured on a server, and variables are placed by it."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster


# Of one, many and one variables, and with Keras 3 of their counters of steps.
_FUSED = {"keras": 1 + 32 + 1 + 3, "tf_keras": 1 + 32 + 1, "stock updates": 0}


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize("name", ["keras", "tf_keras", "stock updates"])
def test_measured(cases, name):
    found = cases[name]
    assert found["slots"] == 2 and found["workers"] == 1
    assert found["update_s_per_byte"] > 0
    how = "updates as TensorFlow runs them" if name == "stock updates" else "one operation each"
    assert found["origin"].startswith("measured on /job:ps/replica:0/task:1, of ")
    assert found["origin"].endswith(how)
    assert found["fused"] == _FUSED[name]


def test_placed_by_it(cases):
    assert cases["placed"] == {"origin": "measured by a test", "update_s": 3.0}


def test_where_it_cannot_be_measured(cases):
    assert cases["no server"] == "there is no server 2: the cluster has 2"
    assert cases["in a scope"] == "call measure_costs outside of the scope of a strategy"


def _main():
    from dataclasses import replace

    import tensorflow as tf
    import tf_keras
    from tensorflow.python.eager import context as context_module

    from tf_fuse import parameter_server
    from tf_fuse.shard_update import interception

    job = coordinator.Job("off", 1, 2)
    context = context_module.context()

    def measured(make, is_fused=True):
        def run():
            options = {"shard_weight_update": True, "fuse_weight_update": is_fused}
            tf.config.optimizer.set_experimental_options(options)
            before = len(interception.fuser_of(context).decisions)
            costs = parameter_server.measure_costs(job.strategy, make, 1)
            made = interception.fuser_of(context).decisions[before:]
            return costs.figures() | {"fused": sum(len(one.outline.clusters) for one in made)}

        return run

    def placed():
        costs = parameter_server.Costs(update_s=1.0, update_s_per_byte=0.0)
        parameter_server.set_costs(job.strategy, replace(costs, origin="measured by a test"))
        with job.strategy.scope():
            made = [tf.Variable(tf.zeros([2])) for _ in range(3)]
        report = parameter_server.placement_report(job.strategy)
        assert len(made) == len(report["variables"])
        total = sum(one["update_s_per_step"] for one in report["servers"])
        return {"origin": report["costs"]["origin"], "update_s": total}

    def refused(in_scope, server):
        def run():
            try:
                if in_scope:
                    with job.strategy.scope():
                        parameter_server.measure_costs(job.strategy, tf.keras.optimizers.Adam)
                parameter_server.measure_costs(job.strategy, tf.keras.optimizers.Adam, server)
            except ValueError as error:
                return str(error)
            return None

        return run

    coordinator.finish(
        {
            "keras": measured(tf.keras.optimizers.Adam),
            "tf_keras": measured(tf_keras.optimizers.Adam),
            "stock updates": measured(tf.keras.optimizers.Adam, False),
            "no server": refused(False, 2),
            "in a scope": refused(True, 0),
            "placed": placed,
        }
    )


if __name__ == "__main__":
    assert len(sys.argv) == 1
    _main()
