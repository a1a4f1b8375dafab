# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates in one operation on servers, where a task lacks the plugin or a worker dies."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_UPDATES = 60
_SERVERS = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]


@pytest.fixture(scope="module")
def mixed():
    return coordinator.run(__file__, "mixed")


@pytest.fixture(scope="module")
def killed():
    return coordinator.run(__file__, "killed")


@pytest.mark.parametrize("worker", ["worker 0", "worker 1"])
def test_training_goes_on_where_tasks_lack_the_plugin(mixed, worker):
    assert mixed[worker]["ulps"] == 0


def test_variables_of_a_server_without_the_plugin_are_left(mixed):
    plan = mixed["plan"]
    assert plan["fused on"] == [_SERVERS[0]]
    assert plan["left"] == ["no_plugin"]
    assert "/job:ps/replica:0/task:1" in plan["detail"]


def test_worker_without_the_plugin_runs_the_function_itself(mixed):
    assert mixed["plan"]["plain"] == ["/job:worker/replica:0/task:1"]


@pytest.mark.parametrize("worker", ["worker 0", "worker 1"])
def test_everything_has_the_bits_of_stock_where_tasks_lack_the_plugin(mixed, worker):
    """With variables placed and in pieces, rows gathered on servers and products of pieces, too."""
    case = mixed["everything"]
    assert case["pieces"] == [2, 2, 1]
    assert case["stock"]["loss"] == case[worker]["loss"]
    assert case["stock"]["state"] == case[worker]["state"]


def test_updates_stay_whole_when_a_worker_dies(killed):
    case = killed["killed"]
    # A step that was interrupted is done again; its update may be there already.
    assert case["updates"] >= _UPDATES
    assert case["torn"] == 0
    assert case["ops"] == 1


def test_worker_that_comes_back_runs_the_same_operation(killed):
    assert killed["again"] == {"runs": True, "torn": 0}


def _main(what):
    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    from tests.cluster.parameter_server import update_cases as updates
    from tests.fault import everything
    from tf_fuse.shard_update import interception

    context = context_module.context()

    def switch(on):
        options = {"fuse_weight_update": on, "do_fuse_recv": True, "fuse_grouping": "level"}
        tf.config.optimizer.set_experimental_options(options)

    def mixed():
        protocols = {"worker:0": "grpc+fuse", "worker:1": "grpc", "ps:0": "grpc+fuse"}
        job = coordinator.Job(
            "off", 2, 2, protocol={**protocols, "ps:1": "grpc", "chief": "grpc+fuse"}
        )
        adam = updates.makers()["keras Adam"]

        def trained(worker):
            model = updates.Model(job.strategy, adam)
            for i in range(2):
                with tf.device(f"/job:worker/replica:0/task:{worker}"):
                    model.step(tf.constant(updates.IDS[i]))
            return model.values()

        def on_worker(worker):
            switch(False)
            stock = trained(worker)
            switch(True)
            return {"ulps": updates.ulps(trained(worker), stock)}

        def plan():
            (one, _) = (decision.outline for decision in interception.fuser_of(context).decisions)
            left = [left for left in one.left if left.reason != "too_few"]
            return {
                "fused on": sorted({fusion.device for fusion in one.clusters} - {"/device:CPU:0"}),
                "left": sorted({one.reason for one in left}),
                "detail": left[0].detail,
                "plain": sorted(interception.fuser_of(context)._tasks_without_plugin),
            }

        def one_step(model, worker):
            model.reset()
            step, ids = model.plain(), tf.constant(everything.IDS)
            with tf.device(f"/job:worker/replica:0/task:{worker}"):
                loss = step(ids)
            return {"loss": coordinator.exact(loss), "state": model.state()}

        def everything_on():
            everything.switch(False)
            stock = one_step(everything.Everything(job.cluster.resolver(), False), 0)
            everything.switch(True)
            model = everything.Everything(job.cluster.resolver(), True)
            of_workers = {f"worker {i}": one_step(model, i) for i in range(2)}
            return {"stock": stock, "pieces": model.pieces(), **of_workers}

        return {
            "worker 0": lambda: on_worker(0), "worker 1": lambda: on_worker(1), "plan": plan,
            "everything": everything_on,
        }  # fmt: skip

    def killed():
        job = coordinator.Job("off", 2, 1)
        switch(True)
        counted = updates.Counted(job.strategy, 1 << 12)

        def torn():
            return int(updates.whole_updates(*counted.snapshot()) is None)

        def number():
            return updates.whole_updates(*counted.values())

        def kill():
            bad = 0
            for _ in range(_UPDATES):
                job.coordinator.schedule(counted.step)
            coordinator.wait_until(lambda: number() not in (None, 0))
            job.cluster.kill("worker:0")
            bad += torn()
            job.cluster.restart("worker:0")
            job.coordinator.join()
            bad += torn()
            found = [one.outline for one in interception.fuser_of(context).decisions]
            ops = sum(c.size != 1 for one in found for c in one.clusters)
            return {"updates": number(), "torn": bad, "ops": ops}

        def again():
            def runs():
                job.coordinator.schedule(counted.step)
                job.coordinator.join()
                with tf.device("/job:worker/replica:0/task:0"):
                    return coordinator.caught(counted.step)["raised"] is None

            return {"runs": coordinator.wait_until(runs), "torn": torn()}

        return {"killed": kill, "again": again}

    coordinator.finish({"mixed": mixed, "killed": killed}[what]())


if __name__ == "__main__":
    assert len(sys.argv) == 2
    _main(sys.argv[1])
