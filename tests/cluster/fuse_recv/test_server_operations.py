# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many operations servers run in a step, groups or not, does not depend on the tables.

The coordinator runs the step itself: so it has the partitions of all tasks, as they run.
"""

import collections
import sys

import pytest

from tests.cluster.fuse_recv.table_step import table_step
from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
_FEW = 10
_MANY = (40, 300)
_SLOW = [f"{update} {_MANY[1]}" for update in ("scatter", "keras Adam")]
# Of a server, in a step: with its first input and what unpacks handles from it.
_SCATTER = {
    "_Arg": 1, "TfFuse>UnpackHandles": 1, "NoOp": 1, "_FuseRecv": 2, "TfFuse>OperationGroup": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    return coordinator.Cases(__file__, "job", slow=_SLOW, seconds=590)


@pytest.mark.parametrize("tables", [_MANY[0], slow(_MANY[1])])
@pytest.mark.parametrize("update", ["scatter", "keras Adam"])
def test_servers_run_as_many_operations_for_many_tables(cases, update, tables):
    few, many = cases[f"{update} {_FEW}"], cases[f"{update} {tables}"]
    assert len(few) == 2
    assert few == many
    if update == "scatter":
        assert list(few.values()) == [_SCATTER] * 2
    else:  # (What Keras computes of the count of steps, once for each server, is in no group.)
        assert [counts["TfFuse>OperationGroup"] for counts in few.values()] == [3, 3]


def test_without_the_option_each_table_has_operations_of_its_own(cases):
    each = _FEW // 2
    for counts in cases["without"].values():
        assert "TfFuse>OperationGroup" not in counts
        assert [counts[op] for op in ("ResourceGather", "ResourceScatterSub")] == [each, each]
        assert counts["_Send"] >= each


def _main():
    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    job = coordinator.Job("off", 1, 2)
    context = context_module.context()

    def step_of(update, tables):
        weights = job.variables([tf.ones([50, 1 + i % 17]) for i in range(tables)])
        with job.strategy.scope():
            optimizer = tf.keras.optimizers.Adam(0.01)
            optimizer.build(weights)
        return table_step(job, weights, optimizer if update == "keras Adam" else None)

    def counted(update, tables, in_groups=True):
        """Of each server, its operations by type."""
        tf.config.optimizer.set_experimental_options(
            {
                "do_fuse_recv": True,
                "fuse_grouping": "level",
                "fuse_operations": in_groups,
                "fuse_weight_update": update != "scatter",
            }
        )
        step = step_of(update, tables)
        context.enable_run_metadata()
        with job.strategy.scope():
            step(tf.zeros([32, tables], tf.int32))
        metadata = context.export_run_metadata()
        context.disable_run_metadata()
        found = collections.defaultdict(collections.Counter)
        for function in metadata.function_graphs:
            for graph in function.partition_graphs:
                for node in graph.node:
                    if "/job:ps/" in node.device:
                        found[node.device][node.op] += 1
        return found

    cases = {
        f"{update} {tables}": lambda update=update, tables=tables: counted(update, tables)
        for update in ("scatter", "keras Adam")
        for tables in (_FEW, *_MANY)
    }
    cases["without"] = lambda: counted("scatter", _FEW, in_groups=False)
    coordinator.finish(cases, _SLOW)


if __name__ == "__main__":
    assert sys.argv[1] == "job"
    _main()
