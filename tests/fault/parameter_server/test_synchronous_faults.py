# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults in synchronous training on parameter servers: outcomes and state are those of stock.

Two workers and two servers. In the loop, workers add gradients up beside the weights, and when all
have, one function applies them; in the session, `SyncReplicasOptimizer` does so. The faults happen
while a step waits; the state must be that of before, and what follows the synchronous
step of all workers, to the last bit: no gradient is lost or counted twice.
"""

import sys
import threading

import pytest

from tests.fault import coordinator, table

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(600)]

_MODES = ("stock", "on")
_DEADLINE_MS = 8000  # of every RPC; nothing else here comes near it
_WORKER = "/job:worker/replica:0/task:0"
_GATED = "/job:ps/replica:0/task:1"
_SHAPES = [[16, 16], [16]] * 2


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(__file__, mode) for mode in _MODES}


@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case):
    table.check(__file__, case, runs["stock"][case], runs["on"][case])


def test_steps_without_faults_have_the_bits_of_stock(runs):
    for case in ("loop", "session"):
        assert "raised" not in runs["stock"][case]
        assert runs["on"][case] == runs["stock"][case]
        assert runs["on"][case]["before"] != runs["on"][case]["behind"]


@pytest.mark.parametrize("case", ["loop_worker_killed", "loop_server_stopped"])
@pytest.mark.parametrize("mode", _MODES)
def test_a_step_of_the_loop_counts_each_gradient_once(runs, mode, case):
    assert runs[mode][case]["left"] == runs[mode]["loop"]["behind"]


@pytest.mark.parametrize("mode", _MODES)
def test_a_step_of_the_loop_that_ended_adds_nothing(runs, mode):
    assert runs[mode]["loop_server_stopped"]["meanwhile"] == runs[mode]["loop"]["before"]


_SESSION = ["session_late_gradient", "session_too_few_gradients", "session_worker_killed"]


@pytest.mark.parametrize("case", _SESSION)
@pytest.mark.parametrize("mode", _MODES)
def test_a_step_of_the_session_counts_each_gradient_once(runs, mode, case):
    assert runs[mode][case]["left"] == runs[mode]["session"]["behind"]


def _values():
    import numpy as np

    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype("float32") for shape in _SHAPES]


class _Loop:
    """Two functions: one for each worker, that adds its gradients; one that applies the sums."""

    def __init__(self, job, strategy):
        import keras
        import tensorflow as tf

        self.job, self.strategy = job, strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self.weights = [tf.Variable(value) for value in _values()]
            self.sums = []
            for weight in self.weights:
                with strategy.extended.colocate_vars_with(weight):
                    self.sums.append(tf.Variable(tf.zeros(weight.shape), trainable=False))
            self.optimizer = keras.optimizers.Adam(0.01)
            self.optimizer.build(self.weights)
            with tf.device("/job:ps/task:1"):
                self.entered = tf.Variable(0, trainable=False, name="entered")
        with tf.device(_GATED):
            self.queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]], shared_name="gate")
        self.add, self.apply = tf.function(self._add), tf.function(self._apply)

    def _add(self, scale):
        """Waits, and then adds the gradients."""
        import tensorflow as tf

        with tf.device(_GATED), tf.control_dependencies([self.entered.assign_add(1)]):
            gate = self.queue.dequeue()
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.sin(scale * gate * w)) for w in self.weights])
        for one, gradient in zip(self.sums, tape.gradient(loss, self.weights), strict=True):
            one.assign_add(gradient)
        return loss

    def _apply(self):
        import tensorflow as tf

        def replica():
            means = [one / 2.0 for one in self.sums]
            self.optimizer.apply_gradients(zip(means, self.weights, strict=True))
            for one in self.sums:
                one.assign(tf.zeros(one.shape))

        self.strategy.run(replica)

    def reset(self):
        import tensorflow as tf

        for weight, value in zip(self.weights, _values(), strict=True):
            weight.assign(value)
        for one in (*self.sums, *self.optimizer.variables[2:]):
            one.assign(tf.zeros(one.shape))
        self.optimizer.iterations.assign(0)

    def state(self):
        own = [one.value for one in self.optimizer.variables[2:]]
        return coordinator.exact([one.numpy() for one in (*self.weights, *self.sums, *own)])

    def has_entered(self, since, count=1):
        return coordinator.wait_until(lambda: int(self.entered.numpy()) >= since + count)

    def step(self, meanwhile=lambda since: None):
        """A synchronous step, with something that happens while both workers wait."""
        since = int(self.entered.numpy())
        for _ in range(2):
            self.coordinator.schedule(self.add, args=(1.0,))
        assert self.has_entered(since, 2)
        meanwhile(since)
        for _ in range(2):
            self.queue.enqueue(1.0)
        self.coordinator.join()
        self.coordinator.schedule(self.apply)
        self.coordinator.join()

    def kill_worker(self, since):
        """Another one has begun its step again when this returns."""
        self.job.cluster.kill("worker:0")
        self.job.cluster.restart("worker:0")
        assert self.has_entered(since, 3)


class _Session:
    """A graph with `SyncReplicasOptimizer`, whose state on the servers is its own, and sessions."""

    def __init__(self, job, mode, name):
        import tensorflow as tf
        from tensorflow.python.training import sync_replicas_optimizer

        v1 = tf.compat.v1
        spec = job.cluster.cluster_spec
        self.graph, self.addresses = tf.Graph(), spec["worker"]
        self.scheme = "grpc" if mode == "stock" else "grpc+fuse"
        chosen = {}
        if mode != "stock":
            from tf_fuse import parameter_server, session_config

            chosen["ps_strategy"] = parameter_server.PsStrategy(2)
        self.config = session_config() if mode != "stock" else None
        only = tf.train.ClusterSpec({"ps": spec["ps"], "worker": spec["worker"]})
        with (
            self.graph.as_default(),
            self.graph.container(name),
            v1.device(v1.train.replica_device_setter(cluster=only, **chosen)),
        ):
            self.steps = v1.train.get_or_create_global_step()
            self.weights = [
                v1.get_variable(f"w{i}", initializer=value, use_resource=True)
                for i, value in enumerate(_values())
            ]
            loss = tf.add_n([tf.reduce_sum(tf.sin(weight)) for weight in self.weights])
            inner = v1.train.AdamOptimizer(0.01)
            self.optimizer = sync_replicas_optimizer.SyncReplicasOptimizer(
                inner, replicas_to_aggregate=2, total_num_replicas=2
            )
            self.train = self.optimizer.minimize(loss, global_step=self.steps)
            self.begin = [v1.global_variables_initializer(), v1.local_variables_initializer()]
            # (The chief has its queue of tokens filled by a thread; here a case does that.)
            self.tokens = self.optimizer._sync_token_queue.size()
            self.take = self.optimizer._sync_token_queue.dequeue()
        ops = self.graph.get_operations()
        self.adds = [op for op in ops if "AccumulatorApplyGradient" in op.type]
        with self.graph.as_default():
            accumulators = [op for op in ops if op.type.endswith("ConditionalAccumulator")]
            self.counts = []
            for op in accumulators:
                with self.graph.colocate_with(op):
                    handle = op.outputs[0]
                    count = (
                        tf.raw_ops.ResourceAccumulatorNumAccumulated
                        if handle.dtype == tf.resource
                        else tf.raw_ops.AccumulatorNumAccumulated
                    )
                    self.counts.append(count(handle=handle))
        (self.update,) = self.optimizer._chief_queue_runner.enqueue_ops
        self.slots = [inner.get_slot(w, name) for w in self.weights for name in ("m", "v")]

    def on(self, worker):
        import tensorflow as tf

        target = f"{self.scheme}://{self.addresses[worker]}"
        return tf.compat.v1.Session(target, graph=self.graph, config=self.config)

    def state(self, run):
        return coordinator.exact(run.run([self.steps, *self.weights, *self.slots]))

    def step(self, run):
        """What two workers and the chief do."""
        run.run(self.optimizer.local_step_init_op)
        for _ in range(2):
            run.run(self.adds)
        run.run(self.update)


def _main(mode):
    import tensorflow as tf
    from tensorflow.python.eager import context

    context.context().operation_timeout_in_ms = _DEADLINE_MS
    job = coordinator.Job(mode, 2, 2)
    if mode != "stock":
        tf.config.optimizer.set_experimental_options({"shard_weight_update": True})
    loop = _Loop(job, job.strategy)

    def loop_first():
        loop.reset()
        before = loop.state()
        loop.step()
        return {"before": before, "behind": loop.state()}

    def loop_worker_killed():
        loop.reset()
        return table.observe(lambda: loop.step(loop.kill_worker)) | {"left": loop.state()}

    def loop_server_stopped():
        loop.reset()
        since, raised = int(loop.entered.numpy()), []

        def add():
            try:
                with tf.device(_WORKER):
                    loop.add(tf.constant(1.0)).numpy()
            except tf.errors.OpError as error:
                raised.append(error)

        def stopped():
            thread = threading.Thread(target=add)
            thread.start()
            assert loop.has_entered(since)
            job.cluster.stop("ps:1")
            try:
                thread.join()
            finally:
                job.cluster.cont("ps:1")
            if raised:
                raise raised[0]

        result = table.observe(stopped)
        meanwhile = loop.state()
        loop.step()
        return result | {"meanwhile": meanwhile, "left": loop.state()}

    def with_session(case):
        def run():
            session = _Session(job, mode, case.__name__.replace("_", "-"))
            with session.on(0) as run:
                run.run(session.begin)
                found = case(session, run)
                return found | {"left": session.state(run)}

        return run

    def session_first(session, run):
        before = session.state(run)
        session.step(run)
        session.step(run)
        return {"before": before, "behind": session.state(run)}

    def late_gradient(session, run):
        """A worker that has not heard of the last step adds its gradient: it is dropped."""
        session.step(run)

        def late():
            run.run(session.adds)
            return {int(one) for one in run.run(session.counts)}

        result = table.observe(late, describe=lambda counts: f"{max(counts)} of 2 gradients")
        session.step(run)
        return result

    def too_few(session, run):
        """One of two workers is late, and the chief's update runs into its time limit."""
        session.step(run)
        run.run(session.optimizer.local_step_init_op)
        run.run(session.adds)
        options = tf.compat.v1.RunOptions(timeout_in_ms=2000)
        result = table.observe(lambda: run.run(session.update, options=options))
        run.run(session.adds)
        run.run(session.update)
        return result

    def worker_killed(session, run):
        """It has added its gradient, and waits for a token."""
        session.step(run)
        while run.run(session.tokens):
            run.run(session.take)
        run.run(session.optimizer.local_step_init_op)
        ended = {}

        def work():
            with session.on(1) as own:
                own.run(session.begin[1])  # (A worker has a step of its own.)
                own.run(session.optimizer.local_step_init_op)
                ended.update(table.observe(lambda: own.run(session.train)))

        thread = threading.Thread(target=work)
        thread.start()
        added = coordinator.wait_until(lambda: ended or set(run.run(session.counts)) == {1})
        assert added and not ended, ended
        job.cluster.kill("worker:1")
        job.cluster.restart("worker:1")  # (Until then a client calls again and again.)
        thread.join()
        with session.on(0) as again:  # (The other session has lost a worker of its cluster.)
            again.run(session.adds)
            again.run(session.update)
        return ended

    def server_killed():
        since = int(loop.entered.numpy())
        loop.coordinator.schedule(loop.add, args=(1.0,))
        assert loop.has_entered(since)
        job.cluster.kill("ps:1")
        return table.observe(loop.coordinator.join)

    coordinator.finish(
        {
            "loop": loop_first,
            "session": with_session(session_first),
            "session_late_gradient": with_session(late_gradient),
            "session_too_few_gradients": with_session(too_few),
            "session_worker_killed": with_session(worker_killed),
            "loop_server_stopped": loop_server_stopped,
            "loop_worker_killed": loop_worker_killed,
            "loop_server_killed": server_killed,
        }
    )


if __name__ == "__main__":
    _main(sys.argv[1])
