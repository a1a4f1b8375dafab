# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that goes away while a worker waits in a fused receive, and a session's client.

The script starts one worker and two servers, and a process that connects to them, starts a step
that waits for what a server withholds, and says so. That process is killed (SIGKILL), and the
script connects in its place. First the process is a coordinator, then the client of a session.
"""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault import coordinator, table

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_STEPS = 3
_SUM = 66.0  # 0 + 1 + ... + 11; each training step adds 0.5 to all twelve
_SUMS = [_SUM + 6.0 * step for step in range(_STEPS)]
_LATE = 9.0  # what comes to the sum by the values that were withheld
_GAUGES = ("pending_requests", "pending_receives", "pending_bytes", "unsent_frame_bytes")
_NOTHING = dict.fromkeys(_GAUGES, 0)
# In seconds; TensorFlow's own is ten minutes. Long enough for all that must happen before.
_KEEP_ALIVE_S = 25


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {
        mode: coordinator.run(__file__, mode, tmp_path_factory.mktemp(mode))
        for mode in ("stock", "on")
    }


@pytest.mark.parametrize("case", table.cases(__file__))
def test_outcome(runs, case):
    table.check(__file__, case, runs["stock"][case], runs["on"][case])


@pytest.mark.parametrize("case", ["killed_during", "session_killed_during"])
def test_it_was_killed_while_a_step_waited(runs, case):
    assert runs["stock"][case]["said"] == {"entered": True, "waits_fused": None}
    assert runs["on"][case]["said"] == {"entered": True, "waits_fused": True}


@pytest.mark.parametrize("case", ["killed_during", "session_killed_during"])
def test_the_next_one_gets_the_values_of_a_new_job(runs, case):
    for mode in runs:
        assert runs[mode][case]["sums"] == _SUMS
    assert runs["on"][case]["fused_rpcs"] >= 2 * _STEPS  # from two servers


def test_nothing_is_pending_though_nothing_came(runs):
    assert runs["on"]["killed_during"]["left"] == _NOTHING
    assert runs["on"]["session_left_step"]["left"] == _NOTHING


def test_the_step_of_a_dead_client_takes_nothing(runs):
    for mode in runs:
        assert runs[mode]["session_left_step"]["sum"] == _SUMS[-1] + 6.0 + _LATE


def test_the_gate_was_opened(runs):
    for mode in runs:
        assert runs[mode]["gate_opened"] is None  # it did not raise


def test_the_context_of_a_dead_coordinator_goes_in_the_end(runs):
    """Each coordinator has one step open on each task, for as long as its context lives."""
    tasks = ["/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1", "/job:worker/replica:0/task:0"]
    assert all(runs["on"]["killed_during"]["open_steps"][task] > 1 for task in tasks)
    assert {task: runs["on"]["open_steps"][task] for task in tasks} == dict.fromkeys(tasks, 1)


class _Steps:
    """Steps of a coordinator.

    Attributes:
      trains: returns the sum of twelve variables, and adds 0.5 to each.
      waits: returns the sum and `_LATE`, and writes it to the file "done"; the first server
        withholds three values until somebody opens the named pipe "gate" for writing.
    """

    def __init__(self, job, folder):
        """Makes the variables and what `waits` uses in the folder."""
        import tensorflow as tf

        variables = job.variables([float(i) for i in range(12)])
        files = [str(folder / name) for name in ("entered", "gate", "done")]
        (paths,) = job.variables([files], trainable=False)

        @tf.function
        def trains():
            return coordinator.training_step(variables)

        @tf.function
        def waits():
            with tf.device("/job:ps/replica:0/task:0"):
                entered, gate, done = tf.unstack(paths.read_value())
                with tf.control_dependencies([tf.io.write_file(entered, "")]):
                    text = tf.io.read_file(gate)  # empty
                one = tf.cast(tf.strings.length(text), tf.float32) + 1.0
                values = [one * 2.0, one * 3.0, one * 4.0]
            total = tf.add_n([v.read_value() for v in variables] + values)
            with tf.control_dependencies([tf.io.write_file(done, tf.strings.as_string(total))]):
                return tf.identity(total)

        self.trains, self.waits = trains, waits


class _Graph:
    """The same for sessions, in the default graph; a queue on the first server withholds.

    Attributes:
      init: initializes the variables.
      trains: as in `_Steps`.
      waits: the sum and `_LATE`.
      entered: how many steps have begun to wait.
      put: gives a step what it waits for.
      size: how much of that is there.
    """

    def __init__(self):
        """Adds all nodes."""
        import tensorflow as tf

        v1 = tf.compat.v1
        variables = []
        for i in range(12):
            with tf.device(f"/job:ps/task:{i % 2}"):
                variables.append(v1.get_variable(f"v{i}", initializer=float(i), use_resource=True))
        with tf.device("/job:ps/task:0"):
            entered = v1.get_variable("entered", initializer=0, use_resource=True)
            queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[]], shared_name="gate")
            with tf.control_dependencies([entered.assign_add(1)]):
                one = queue.dequeue()
            values = [one * 2.0, one * 3.0, one * 4.0]
            self.put, self.size = queue.enqueue(1.0), queue.size()
            self.entered = entered.read_value()
        with tf.device("/job:worker/task:0"):
            total = tf.add_n([v.read_value() * 1.0 for v in variables])
            self.waits = total + tf.add_n(values)
            added = [
                v.assign_add(tf.minimum(total + float(i), 0.5)) for i, v in enumerate(variables)
            ]
            with tf.control_dependencies(added):
                self.trains = tf.identity(total)
        self.init = v1.global_variables_initializer()


def _config(mode):
    import tensorflow as tf

    if mode == "stock":
        return tf.compat.v1.ConfigProto()
    import tf_fuse

    return tf_fuse.session_config()


def _waits_fused(mode, **target):
    """Whether the servers come to have one fused request to answer; None in stock TensorFlow."""
    if mode == "stock":
        return None
    import tf_fuse

    def pending():
        return sum(m["pending_requests"] for m in tf_fuse.cluster_metrics(**target).values())

    return coordinator.wait_until(lambda: pending() == 1)


def _say_and_wait(**said):
    os.write(1, (json.dumps(said) + "\n").encode())
    signal.pause()


def _dying_coordinator(mode, cluster, folder):
    from tensorflow.python.eager import context

    assert context._KEEP_ALIVE_SECS == 600  # what docs/faults.md says
    context._KEEP_ALIVE_SECS = _KEEP_ALIVE_S
    context.Context.set_server_def.__defaults__ = (_KEEP_ALIVE_S,)
    job = coordinator.Job(mode, cluster=cluster)
    steps = _Steps(job, folder)
    job.call(steps.trains)
    job.coordinator.schedule(steps.waits)
    is_in = coordinator.wait_until((folder / "entered").exists)
    _say_and_wait(entered=is_in, waits_fused=_waits_fused(mode))


def _dying_client(mode, cluster, _):
    import tensorflow as tf

    target = f"grpc://{cluster['worker'][0]}"
    if mode != "stock":
        import tf_fuse  # noqa: F401  (loads the plugin)
    with tf.Graph().as_default():
        graph = _Graph()
        sessions = [tf.compat.v1.Session(target, config=_config(mode)) for _ in range(2)]
    sessions[0].run(graph.init)
    sessions[0].run(graph.trains)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(sessions[0].run, graph.waits)
        is_in = coordinator.wait_until(lambda: sessions[1].run(graph.entered) == 1)
        _say_and_wait(entered=bool(is_in), waits_fused=_waits_fused(mode, target=target))


_DYING = {"coordinator": _dying_coordinator, "client": _dying_client}


def _killed(kind, mode, cluster, folder):
    """Starts a process, kills it when it says that its step waits, and returns what it said."""
    spec = json.dumps({"kind": kind, "cluster": cluster})
    process = subprocess.Popen(
        [sys.executable, __file__, mode, folder, spec], stdout=subprocess.PIPE, text=True
    )
    try:
        said = next((line for line in process.stdout if line.startswith("{")), "")
    finally:
        process.kill()
        process.wait()
    assert said, f"the {kind} ended by itself, with status {process.returncode}"
    return json.loads(said)


def _main(mode, folder):
    import tensorflow as tf

    from examples import standalone

    # Imported now: the times of what follows are without it.
    if mode != "stock":
        import tf_fuse  # noqa: F401
    protocol = "grpc" if mode == "stock" else "grpc+fuse"
    cluster = standalone.cluster_package().LocalCluster(1, 2, protocol)
    spec = cluster.cluster_spec
    os.mkfifo(folder / "gate")
    jobs = []

    def by_task(name):
        return {} if mode == "stock" else jobs[0].by_task(name)

    def gauges():
        return {name: sum(by_task(name).values()) for name in _GAUGES}

    def at_rest():
        return coordinator.settled(gauges, lambda found: found == _NOTHING)

    def fused():
        return sum(by_task("fused_rpcs").values())

    def killed_during():
        said = _killed("coordinator", mode, spec, folder)

        def go_on():
            jobs.append(coordinator.Job(mode, cluster=spec))
            steps = _Steps(jobs[0], folder / "of_nobody")
            before = fused()
            sums.extend(float(jobs[0].call(steps.trains)) for _ in range(_STEPS))
            counted.append(fused() - before)

        sums, counted = [], []
        result = table.observe(go_on)
        return result | {
            "said": said,
            "sums": sums,
            "fused_rpcs": sum(counted),
            "left": at_rest(),
            "open_steps": by_task("open_steps"),
        }

    def gate_opened():
        # The server's operation, which nothing can cancel, waits there, or this raises.
        os.close(os.open(folder / "gate", os.O_WRONLY | os.O_NONBLOCK))

    def left_step():
        done = (folder / "done").exists()
        return {"outcome": "went on to its end" if done else "cancelled"}

    def session():
        return tf.compat.v1.Session(f"grpc://{spec['worker'][0]}", config=_config(mode))

    def session_killed_during():
        said = _killed("client", mode, spec, folder)

        def go_on():
            with tf.Graph().as_default():
                graph = _Graph()
                with session() as own:
                    own.run(graph.init)
                    before = fused()
                    sums.extend(float(own.run(graph.trains)) for _ in range(_STEPS))
                    counted.append(fused() - before)

        sums, counted = [], []
        result = table.observe(go_on)
        return result | {"said": said, "sums": sums, "fused_rpcs": sum(counted)}

    def session_left_step():
        left = at_rest()
        with tf.Graph().as_default():
            graph = _Graph()
            with session() as own:
                own.run(graph.put)
                result = table.observe(lambda: own.run(graph.size), _describe_size)
                return result | {"left": left, "sum": float(own.run(graph.waits))}

    def open_steps():
        tasks = [task for task in by_task("open_steps") if "chief" not in task]
        coordinator.wait_until(
            lambda: all(by_task("open_steps")[task] == 1 for task in tasks), 2 * _KEEP_ALIVE_S
        )
        return by_task("open_steps")

    coordinator.finish(
        {
            "killed_during": killed_during,
            "gate_opened": gate_opened,
            "session_killed_during": session_killed_during,
            "session_left_step": session_left_step,
            "open_steps": open_steps,
            # At the end, many steps after the gate was opened.
            "left_step": left_step,
        }
    )


def _describe_size(size):
    return "cancelled" if size == 1 else f"took what came: {size} left"


if __name__ == "__main__":
    _mode, _folder, *_spec = sys.argv[1:]
    if _spec:
        _wanted = json.loads(_spec[0])
        _DYING[_wanted["kind"]](_mode, _wanted["cluster"], Path(_folder))
    else:
        _main(_mode, Path(_folder))
