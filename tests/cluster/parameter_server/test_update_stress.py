# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Eight workers that update one variable at the same time: each update is whole, and none is lost.

What stock TensorFlow does with the same is printed (`pytest -rP`): how many of its updates are lost
depends on the machine.
"""

import os
import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_WORKERS = 8
_UPDATES = 1000 if os.environ.get("TF_FUSE_LONG_TESTS") else 160
_ELEMENTS = 1 << 16


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize("kind", ["whole", "rows"])
def test_every_update_is_there_and_whole(cases, kind):
    ours, stock = cases[f"fused {kind}"], cases[f"stock {kind}"]
    for who, one in (("stock", stock), ("fuse_weight_update", ours)):
        print(
            f"{kind}, {who}: {one['momentum']:g} of {_UPDATES} updates in the momentum; the weight "
            f"{'goes' if one['updates'] is not None else 'does not go'} with it in the end, and "
            f"does not in {one['torn']} of {one['snapshots']} snapshots"
        )
    assert ours["updates"] == _UPDATES
    assert ours["ops"] == 1
    assert ours["torn"] == 0 and ours["snapshots"] > 1


def _main():
    from tensorflow.python.eager import context as context_module

    from tests.cluster.parameter_server import update_cases as updates
    from tf_fuse.shard_update import interception

    # Other threads would only wait for the few cores.
    job = coordinator.Job("off", _WORKERS, 1, inter_op=2, intra_op=1)
    context = context_module.context()

    def case(on, sparse):
        def run():
            import tensorflow as tf

            tf.config.optimizer.set_experimental_options(
                {"fuse_weight_update": on, "do_fuse_recv": True}
            )
            counted = updates.Counted(job.strategy, _ELEMENTS, sparse)
            before = len(interception.fuser_of(context).decisions)
            for _ in range(_UPDATES):
                job.coordinator.schedule(counted.step)
            seen = []
            while True:
                is_over = job.coordinator.done()
                seen.append(updates.whole_updates(*counted.snapshot()))
                if is_over:
                    break
            job.coordinator.join()
            momentum, weight = counted.values()
            found = [one.outline for one in interception.fuser_of(context).decisions[before:]]
            return {
                "updates": updates.whole_updates(momentum, weight),
                "momentum": float(-momentum.min()),
                "torn": seen.count(None),
                "snapshots": len(seen),
                "ops": sum(c.size != 1 for one in found for c in one.clusters),
            }

        return run

    coordinator.finish(
        {
            "stock whole": case(False, False),
            "stock rows": case(False, True),
            "fused whole": case(True, False),
            "fused rows": case(True, True),
        }
    )


if __name__ == "__main__":
    assert len(sys.argv) == 1
    _main()
