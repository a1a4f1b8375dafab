# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Between-graph replication with `PsStrategy`: values of stock, places, restarts.

Each of two workers has a graph and a session of its own; they take steps in turns, so that values
do not depend on time. A run with the mode "restart" is a new program on a new cluster, which goes
on from the checkpoints of those before it.
"""

import sys
from pathlib import Path

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow_but

# Several clusters, one after the other.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

_WORKERS, _SERVERS = 2, 2
_MODES = ("stock", "on", "restart")
_OPTIMIZERS = {
    "GradientDescent": ("GradientDescentOptimizer", {}),
    "Momentum": ("MomentumOptimizer", {"momentum": 0.9}),
    "Nesterov": ("MomentumOptimizer", {"momentum": 0.9, "use_nesterov": True}),
    "Adagrad": ("AdagradOptimizer", {}),
    "Adadelta": ("AdadeltaOptimizer", {}),
    "RMSProp": ("RMSPropOptimizer", {"centered": True}),
    "Ftrl": ("FtrlOptimizer", {}),
    "Adam": ("AdamOptimizer", {}),
}
_SYNCHRONOUS = ("GradientDescent", "Momentum", "Adam")
_NAMES = [*_OPTIMIZERS, *(f"synchronous {name}" for name in _SYNCHRONOUS)]
_FAST = ("Momentum", "Adam", "synchronous Momentum")
_SLOW = tuple(name for name in _NAMES if name not in _FAST)


def _run(folder, names):
    return {mode: coordinator.run(__file__, mode, folder, *names) for mode in _MODES}


@pytest.fixture(scope="module")
def fast_runs(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("checkpoints"), _FAST)


@pytest.fixture(scope="module")
def slow_runs(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("checkpoints"), _SLOW)


@pytest.fixture(params=slow_but(_NAMES, _FAST.__contains__))
def name(request):
    return request.param


@pytest.fixture
def runs(request, name):
    """What the script gives in each mode, with this case among others."""
    return request.getfixturevalue("fast_runs" if name in _FAST else "slow_runs")


def test_values_are_those_of_stock(runs, name):
    stock, here = runs["stock"][name], runs["on"][name]
    assert "raised" not in stock and "raised" not in here, (stock, here)
    for what in ("losses", "saved", "then"):
        assert here[what] == stock[what]
    assert here["steps"] == stock["steps"] > 0


def test_both_graphs_and_a_restart_have_the_same_places(runs, name):
    first, second = runs["on"][name]["places"]
    assert first == second
    assert runs["restart"][name]["places"] == [first, first]


def test_a_restart_goes_on_from_either_checkpoint(runs, name):
    for mode in ("stock", "on"):
        restored = runs["restart"][name]["restored"][mode]
        assert restored["saved"] == runs[mode][name]["saved"]
        assert restored["then"] == runs[mode][name]["then"]


def test_servers_keep_the_same(runs, name):
    """Stock TensorFlow, which takes them in turn, has all kernels on one server."""
    stock, here = (runs[mode][name]["kept"] for mode in ("stock", "on"))
    assert max(stock) / sum(stock) > 0.9
    assert max(here) * _SERVERS / sum(here) <= 1.1
    assert sum(here) == sum(stock)


def _main(mode, folder, *names):
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.training import sync_replicas_optimizer

    v1 = tf.compat.v1
    job = coordinator.Job("stock" if mode == "stock" else "on", _WORKERS, _SERVERS)
    spec = {name: job.cluster.cluster_spec[name] for name in ("ps", "worker")}
    config, scheme = v1.ConfigProto(), "grpc"
    if mode != "stock":
        import tf_fuse
        from tf_fuse import parameter_server

        config, scheme = tf_fuse.session_config(), "grpc+fuse"

    class Worker:
        """The graph of a worker, and its session."""

        def __init__(self, index, name):
            self.graph = tf.Graph()
            with self.graph.as_default():
                self._build(index, *_OPTIMIZERS[name.removeprefix("synchronous ")],
                            name.startswith("synchronous"))  # fmt: skip
                self.saver = v1.train.Saver(sharded=True)
            self.session = v1.Session(
                f"{scheme}://{spec['worker'][index]}", graph=self.graph, config=config
            )

        def _build(self, index, cls, args, is_synchronous):
            chosen = {}
            if mode != "stock":
                chosen["ps_strategy"] = parameter_server.PsStrategy(_SERVERS)
            setter = v1.train.replica_device_setter(
                worker_device=f"/job:worker/task:{index}",
                cluster=tf.train.ClusterSpec(spec),
                **chosen,
            )
            rng = np.random.default_rng(3)
            with v1.device(setter):
                self.step = v1.train.get_or_create_global_step()
                weights = []
                for i in range(4):
                    for kind, shape in (("kernel", [48, 48]), ("bias", [48])):
                        value = (rng.normal(size=shape) / 8).astype("float32")
                        weights.append(
                            v1.get_variable(f"{kind}_{i}", initializer=value, use_resource=True)
                        )
                x = tf.gather(weights[0], [index, 3, 3, 47])  # rows of the first kernel
                for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
                    x = tf.tanh(tf.matmul(x, kernel) + bias)
                self.loss = tf.reduce_sum(x * x) * (1.0 + index)
                inner = optimizer = getattr(v1.train, cls)(0.01, **args)
                if is_synchronous:
                    optimizer = sync_replicas_optimizer.SyncReplicasOptimizer(
                        inner, replicas_to_aggregate=_WORKERS, total_num_replicas=_WORKERS
                    )
                self.train = optimizer.minimize(self.loss, global_step=self.step)
                self.begin = [v1.global_variables_initializer(), v1.local_variables_initializer()]
            self.state = v1.global_variables()
            self.sync = optimizer if is_synchronous else None
            self.weights = weights
            self.adds = [
                op for op in self.graph.get_operations() if "AccumulatorApplyGradient" in op.type
            ]

        def places(self):
            kinds = ("VarHandleOp", "ConditionalAccumulator", "SparseConditionalAccumulator")
            ops = [op for op in self.graph.get_operations() if op.type in kinds]
            return {op.name: op.device for op in ops if "job:ps" in op.device}

        def kept(self):
            """Bytes of weights and slots by server."""
            sums = [0] * _SERVERS
            for one in self.state:
                sums[tf.DeviceSpec.from_string(one.device).task] += (
                    one.shape.num_elements() * one.dtype.size
                )
            return sums

    def advance(workers):
        """A step of each worker, the first one before the second; their losses."""
        losses = [one.session.run(one.loss) for one in workers]
        if workers[0].sync is None:
            for one in workers:
                one.session.run(one.train)
            return losses
        # As each worker does in its step, and then the chief in its thread.
        for one in workers:
            one.session.run(one.sync.local_step_init_op)
            one.session.run(one.adds)
        (update,) = workers[0].sync._chief_queue_runner.enqueue_ops
        workers[0].session.run(update)
        return losses

    def values(workers):
        return coordinator.exact(workers[1].session.run(workers[1].state))

    def begin(workers):
        for one in workers:
            one.session.run(one.begin)
        if workers[0].sync is not None:
            workers[0].session.run(workers[0].sync.chief_init_op)

    def case(name):
        def run():
            workers = [Worker(index, name) for index in range(_WORKERS)]
            result = {"places": [one.places() for one in workers], "kept": workers[0].kept()}
            begin(workers)
            if mode == "restart":
                result["restored"] = {}
                for saved in ("stock", "on"):
                    with workers[0].graph.as_default():
                        workers[0].saver.restore(workers[0].session, path(saved, name))
                    before = values(workers)
                    advance(workers)
                    result["restored"][saved] = {"saved": before, "then": values(workers)}
            else:
                losses = [advance(workers) for _ in range(3)]
                with workers[0].graph.as_default():
                    workers[0].saver.save(workers[0].session, path(mode, name))
                result |= {"losses": coordinator.exact(losses), "saved": values(workers)}
                advance(workers)
                steps = int(workers[1].session.run(workers[1].step))
                result |= {"then": values(workers), "steps": steps}
            for one in workers:
                one.session.close()
            return result

        return run

    def path(saved, name):
        return str(Path(folder) / f"{saved}_{name.replace(' ', '_')}")

    coordinator.finish({name: case(name) for name in names})


if __name__ == "__main__":
    _main(*sys.argv[1:])
