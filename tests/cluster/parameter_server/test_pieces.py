# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the pieces of a variable cost in RPCs, with fused receives, and that values stay."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_SERVERS = 2


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


def _receives(cases, name):
    """Receive RPCs of one step, fused and single ones."""
    assert "raised" not in cases[name], cases[name]
    counters = cases[name]["step"]["counters"]
    assert not {"errors", "fallbacks"} & counters.keys()
    return counters.get("fused_rpcs", 0) + counters.get("single_rpcs", 0)


def test_pieces_of_a_kernel_cost_no_rpc_more(cases):
    assert cases["matmul_whole"]["shards"] == 1
    assert cases["matmul_pieces"]["shards"] == _SERVERS
    assert _receives(cases, "matmul_whole") == _receives(cases, "matmul_pieces") == 5


def test_pieces_of_a_table_cost_one_rpc_more(cases):
    # The ids go to two servers. The other one sends its rows with what it sends anyway.
    assert cases["gather_whole"]["shards"] == 1
    assert cases["gather_pieces"]["shards"] == _SERVERS
    assert _receives(cases, "gather_whole") == 6
    assert _receives(cases, "gather_pieces") == 7


def test_pieces_too_large_for_a_frame_cost_what_any_such_tensor_does(cases):
    assert cases["large_pieces"]["step"]["counters"]["beside_tensors"] == 4
    assert _receives(cases, "large_whole") == 5
    assert _receives(cases, "large_pieces") == 9


def test_products_of_pieces_cost_no_rpc_more(cases):
    assert _receives(cases, "matmul_split") == _receives(cases, "matmul_whole")


@pytest.mark.parametrize("case", ["matmul_pieces", "large_pieces", "gather_pieces"])
def test_values_have_the_same_bits(cases, case):
    whole = cases[case.replace("pieces", "whole")]
    assert cases[case]["step"]["value"] == whole["step"]["value"]
    assert cases[case]["weight"] == whole["weight"]


def test_products_of_pieces_have_the_same_bits_where_nothing_is_rounded(cases):
    assert cases["matmul_split"]["step"]["value"] == cases["matmul_whole"]["step"]["value"]
    assert cases["matmul_split"]["weight"] == cases["matmul_whole"]["weight"]


def test_without_fused_receives_pieces_cost_rpcs(cases):
    assert _receives(cases, "gather_whole_unfused") == 14
    assert _receives(cases, "gather_pieces_unfused") == 17


def _main():
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job("on", 1, _SERVERS)
    import tf_fuse

    set_options = tf.config.optimizer.set_experimental_options
    set_options({"shard_weight_update": True})
    resolver = job.cluster.resolver()
    # A slow link, so that a small variable is split; its pieces fit into a frame.
    costs = tf_fuse.parameter_server.Costs(
        link_bytes_per_s=1e7, update_s=1e-3, rows_per_step={"embeddings": 256, "kernel": 0}
    )
    ids = tf.constant([1, 3, 3, 500, 511, 0])

    def case(name, is_split, is_fused=True, products=False):
        def run():
            set_options({"do_fuse_recv": is_fused, "split_matmuls": products})
            partitioner = None
            if is_split:
                partitioner = tf_fuse.parameter_server.CostPartitioner(_SERVERS, costs)
            strategy = tf.distribute.ParameterServerStrategy(
                resolver, variable_partitioner=partitioner
            )
            with strategy.scope():
                rows = 32768 if name == "large" else 512
                value = tf.reshape(tf.range(rows * 64.0) % 7, [rows, 64])
                weight = tf.Variable(value, name="embeddings" if name == "gather" else "kernel")
                biases = [tf.Variable(tf.ones([64]) * i, name=f"bias{i}") for i in range(6)]
            parts = list(getattr(weight, "variables", [weight]))

            @tf.function
            def step():
                # Whole numbers of a few bits: no sum is rounded.
                with tf.GradientTape() as tape:
                    if name != "gather":
                        x = tf.cast(tf.reshape(tf.range(4 * rows) % 5, [4, rows]), tf.float32)
                        y = tf.matmul(x, weight)
                    else:
                        y = tf.nn.embedding_lookup(weight, ids)
                    loss = tf.reduce_sum((y + tf.add_n(biases)) * 0.5)
                variables = parts + biases
                for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
                    v.assign_sub(0.25 * tf.convert_to_tensor(g))
                return loss

            loop = tf.distribute.coordinator.ClusterCoordinator(strategy)

            def call():
                result = loop.schedule(step)
                loop.join()
                return result.fetch()

            call()  # Traced and instantiated: the counted call is a step.
            counted = job.counted(call)
            whole = np.concatenate([part.numpy() for part in parts])
            return {"step": counted, "shards": len(parts), "weight": coordinator.exact(whole)}

        return run

    cases = {}
    for name in ("matmul", "large", "gather"):
        cases[f"{name}_whole"] = case(name, False)
        cases[f"{name}_pieces"] = case(name, True)
    cases["matmul_split"] = case("matmul", True, products=True)
    cases["gather_whole_unfused"] = case("gather", False, is_fused=False)
    cases["gather_pieces_unfused"] = case("gather", True, is_fused=False)
    coordinator.finish(cases)


if __name__ == "__main__":
    _main(*sys.argv[1:])
