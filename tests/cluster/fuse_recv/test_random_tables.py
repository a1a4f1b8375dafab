# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps drawn at random, whose operations run in groups, have the bits of stock TensorFlow.

Each step is trained twice on one cluster: with no option on, and with options that are drawn, too.
"""

import collections
import random
import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_WORKER = "/job:worker/replica:0/task:0"
# By how many programs are drawn, what is in groups on servers.
_ROWS = {
    "ResourceGather", "ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate", "_Send"
}  # fmt: skip
_GROUPED = {6: _ROWS, 40: {*_ROWS, "TfFuse>ElementwiseUpdate", "TfFuse>StagedUpdate"}}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_values_are_those_of_stock(count):
    found = coordinator.run(__file__, count, 1, seconds=590)["programs"]
    assert "raised" not in found, found["text"]
    assert found["differ"] == []
    assert found["programs"] == count
    # In each program, operations of a server run in a group.
    assert found["without_groups"] == []
    assert set(found["grouped"]) >= _GROUPED[count]


def _main(count, seed):
    import numpy as np
    import tensorflow as tf

    import tf_fuse
    from tests.cluster.fuse_recv import random_tables

    job = coordinator.Job("off", 1, 2)

    def cut(shape, dtype):
        del dtype
        return [strategy.pieces, *[1] * (len(shape) - 1)] if len(shape) else [1]

    strategy = tf.distribute.ParameterServerStrategy(
        job.cluster.resolver(), variable_partitioner=cut
    )
    strategy.pieces = 1
    loop = tf.distribute.coordinator.ClusterCoordinator(strategy)
    off = {"do_fuse_recv": False, "fuse_grouping": "level", "fuse_weight_update": False}

    def trained(program, options):
        tf.config.optimizer.set_experimental_options(off | options)
        training = random_tables.Training(strategy, program)
        results = []
        for arguments in training.arguments():
            scheduled = [
                loop.schedule(function, args=of_function)
                for function, of_function in zip(training.functions, arguments, strict=True)
            ]
            loop.join()
            results += [one for remote in scheduled for one in tf.nest.flatten(remote.fetch())]
        return [np.asarray(one) for one in results] + training.values()

    def rewritten():
        return job.by_task("functions")[_WORKER]

    def grouped(before):
        """Operations in groups on servers, in all functions since."""
        reports = tf_fuse.cluster_reports()[_WORKER]
        counts = collections.Counter()
        for report in reports[len(reports) - (rewritten() - before) :]:
            for group in report.get("operation_groups", []):
                if "/job:ps/" in group["device"]:
                    counts.update(group["operations"])
        return counts

    def programs():
        rng = random.Random(seed)
        differ, without_groups, counts = [], [], collections.Counter()
        for number in range(count):
            often = random_tables.UPDATES[number % len(random_tables.UPDATES)]
            program = random_tables.draw(rng, often)
            options = {
                "do_fuse_recv": True,
                "fuse_grouping": rng.choice(["level", "consumer", "cost"]),
                "fuse_weight_update": rng.random() < 0.5,
            }
            before = rewritten()
            stock = trained(program, {})
            assert rewritten() == before, "stock was rewritten"
            ours = trained(program, options)
            pairs = zip(coordinator.exact(ours), coordinator.exact(stock), strict=True)
            places = [place for place, (one, other) in enumerate(pairs) if one != other]
            if places:
                differ.append(f"{number}: {places} of {len(ours)}, {options}, {program}")
            of_program = grouped(before)
            if not of_program:
                without_groups.append(f"{number}: {options}, {program}")
            counts.update(of_program)
        return {
            "programs": count,
            "differ": differ,
            "without_groups": without_groups,
            "grouped": counts,
        }

    coordinator.finish({"programs": programs})


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
