# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults with all options for parameter servers on: outcomes and state are those of stock.

One worker, two servers, and a model in pieces (`everything.py`). Each case begins with the same
state and makes a fault happen; what is left must be the state from before the step or from behind
it, to the last bit, and the next step must be that of a program without faults. At the end a server
dies; other coordinators then go on from the checkpoint, and one of them is killed, too.
"""

import sys
import threading
from pathlib import Path

import pytest

from tests.fault import coordinator, table
from tests.fault.parameter_server.gated_steps import ON, Steps, counts
from tests.fault.parameter_server.next_coordinator import run_next

# Two coordinators, and those that follow them, on a machine that may do other things beside.
_SECONDS = 600
pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(2 * _SECONDS + 100)]
_ON_PARAMS = ("on", pytest.param("spread", marks=pytest.mark.slow))
_MODE_PARAMS = ("stock", *_ON_PARAMS)
_DEADLINE_MS = 8000  # of every RPC; nothing else here comes near it
_WORKER = "/job:worker/replica:0/task:0"
_CUT = 24  # requests, each cut off behind another byte


class _Runs(dict):
    """What each mode gives, run when it is first asked for."""

    def __init__(self, make_folder):
        super().__init__()
        self._make_folder = make_folder

    def __missing__(self, mode):
        self[mode] = coordinator.run(__file__, mode, self._make_folder(mode), seconds=_SECONDS)
        return self[mode]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return _Runs(tmp_path_factory.mktemp)


@pytest.mark.parametrize("case", table.cases(__file__))
@pytest.mark.parametrize("mode", _ON_PARAMS[::-1])  # (The times of the last one are kept.)
def test_outcome(runs, mode, case):
    table.check(__file__, case, runs["stock"][case], runs[mode][case])


def test_everything_is_on(runs):
    first = runs["on"]["first"]
    assert first["pieces"] == [2, 2, 1]
    assert first["fused"] == [6, 0]  # five weights, in pieces, and the counter of steps; none left
    assert first["gathers"] == 2  # by the servers
    assert runs["stock"]["first"]["pieces"] == [1, 1, 1]


@pytest.mark.slow
def test_the_update_of_the_kernel_is_spread(runs):
    first = runs["spread"]["first"]
    assert (first["pieces"], first["fused"], first["gathers"]) == ([1, 2, 1], [5, 0], 1)


@pytest.mark.parametrize("mode", _ON_PARAMS)
def test_a_step_without_faults_has_the_bits_of_stock(runs, mode):
    for key in ("loss", "behind"):
        assert runs[mode]["first"][key] == runs["stock"]["first"][key]


_ALIVE = ["cancelled", "worker_stopped", "server_stopped", "out_of_range_gather"]


@pytest.mark.parametrize("case", _ALIVE)
@pytest.mark.parametrize("mode", _MODE_PARAMS)
def test_a_step_that_ends_before_its_update_leaves_no_trace(runs, mode, case):
    assert runs[mode][case]["left"] == "before"
    assert runs[mode][case]["then"] == "behind"


@pytest.mark.parametrize("mode", _MODE_PARAMS)
def test_a_step_whose_worker_dies_is_done_once(runs, mode):
    case = runs[mode]["worker_killed"]
    assert case["left"] in ("behind", "repeated") and case["then"] == "behind"


@pytest.mark.parametrize("mode", _ON_PARAMS)
def test_an_index_out_of_range_changes_nothing_of_its_variable(runs, mode):
    """One operation does all of the update, or nothing: the other pieces have all of theirs."""
    case = runs[mode]["out_of_range_update"]
    assert set(case["parts"]) <= {"before", "behind"}
    assert case["parts"][0] == "before"
    assert case["then"] == "behind"


@pytest.mark.parametrize("mode", _ON_PARAMS)
def test_an_error_beside_updates_leaves_each_of_them_whole(runs, mode):
    case = runs[mode]["error_beside"]
    assert set(case["parts"]) <= {"before", "behind"}
    assert case["then"] == "behind"


@pytest.mark.parametrize("case", ["cancelled", "worker_killed", "worker_stopped", "server_stopped"])
@pytest.mark.parametrize("mode", _MODE_PARAMS)
def test_a_step_that_ended_takes_nothing(runs, mode, case):
    assert runs[mode][case]["in_queue"] == 1


@pytest.mark.parametrize("mode", _ON_PARAMS)
def test_requests_that_are_cut_off_are_refused_and_change_nothing(runs, mode):
    case = runs[mode]["cut_off"]
    assert set(case["codes"]) <= {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED"}
    assert sum(case["codes"].values()) == 3 * _CUT  # to both servers and the worker
    assert (case["left"], case["then"]) == ("behind", "behind")


@pytest.mark.parametrize("mode", _ON_PARAMS)
def test_nothing_is_pending(runs, mode):
    assert runs[mode]["pending"] == {"receives": 0, "requests": 0}


@pytest.mark.parametrize("case", ["next_coordinator", "last_coordinator"])
@pytest.mark.parametrize("mode", _MODE_PARAMS)
def test_another_coordinator_goes_on_from_the_checkpoint(runs, mode, case):
    first, said = runs[mode]["first"], runs[mode][case]["said"]
    assert said["restored"] == first["behind"]
    assert said["then"] == first["second"]
    assert runs[mode]["next_coordinator"]["said"]["entered"] is True


def _main(mode, folder):
    import tensorflow as tf
    from tensorflow.python.eager import cancellation, context, executor

    from tests.fault import everything

    # TensorFlow has one for all threads; here each call has its own.
    managers = threading.local()
    cancellation.context = lambda: getattr(managers, "own", None)
    context.context().operation_timeout_in_ms = _DEADLINE_MS
    is_on = mode in ON
    job = coordinator.Job("on" if is_on else mode, 1, 2)
    if is_on:
        everything.switch(True)
    steps = Steps(job.cluster.resolver(), mode)
    model = steps.model
    ids = tf.constant(everything.IDS)
    states, parts = {}, {}

    def on_worker(function):
        with tf.device(_WORKER):
            return float(function(ids))

    def note(name):
        states[name], parts[name] = model.state(), model.parts()

    def first():
        model.reset()
        note("before")
        loss = model.call(steps.plain)
        note("behind")
        model.checkpoint().write(str(folder / "saved"))
        model.call(steps.plain)
        note("second")
        model.reset()
        # The counter of steps waits for nothing, so it is behind a step that ended before its
        # update, and ahead when that is done again.
        model.optimizer.iterations.assign(1)
        model.call(steps.plain)
        note("repeated")
        on_worker(steps.plain)  # (As of a program that has run before the faults.)
        model.reset()
        steps.queue.enqueue(1.0)
        on_worker(steps.gated)
        return {
            "loss": coordinator.exact(loss),
            "behind": states["behind"],
            "second": states["second"],
            "gated": left(),
            "pieces": model.pieces(),
            **(counts(model, steps.plain, ids) if is_on else {}),
        }

    def left():
        now = model.state()
        return next((name for name, one in states.items() if one == now), "something else")

    def parts_left():
        """Of each piece and its slots, and of each whole one, in which state it is."""
        return [
            next((name for name in ("before", "behind") if parts[name][i] == one), "torn")
            for i, one in enumerate(model.parts())
        ]

    def then():
        """The state behind a step from the start."""
        model.reset()
        model.call(steps.plain)
        return left()

    def case(action, **more):
        """What becomes of an action that begins with the first state, and of a step behind it."""

        def run():
            model.reset()
            result = table.observe(action)
            result |= {"left": left(), "parts": parts_left()}
            return result | {"then": then()} | {name: one() for name, one in more.items()}

        return run

    def in_queue():
        count = int(steps.queue.size())
        for _ in range(count):
            steps.queue.dequeue()
        return count

    def in_queue_of_ended():
        """The server may hear of the value before it hears that the step has ended.

        They come by two calls, whose order nobody promises. The step then takes that value, but no
        second one.
        """
        count = in_queue()
        if not count:
            steps.queue.enqueue(1.0)
            count = in_queue()
        return count

    def in_thread(call, meanwhile):
        """Runs a gated step, and something else when it waits; raises its error."""
        raised, since = [], int(steps.entered.numpy())

        def run():
            try:
                call()
            except tf.errors.OpError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert steps.has_entered(since)
        meanwhile()
        thread.join()
        if raised:
            raise raised[0]

    def cancelled():
        manager = cancellation.CancellationManager()

        def call():
            managers.own = manager
            own = executor.new_executor(enable_async=False)  # calls of one wait for each other
            try:
                with context.executor_scope(own):
                    on_worker(steps.gated)
            finally:
                own.clear_error()  # it would be printed when the executor goes

        in_thread(call, manager.start_cancel)

    def server_stopped():
        try:
            in_thread(lambda: on_worker(steps.gated), lambda: job.cluster.stop("ps:1"))
        finally:
            job.cluster.cont("ps:1")

    def worker_stopped():
        try:
            in_thread(lambda: on_worker(steps.gated), lambda: job.cluster.stop("worker:0"))
        finally:
            # If it went on, its step might, and do its update at some time.
            job.cluster.kill("worker:0")
            job.cluster.restart("worker:0")

    def worker_killed():
        since = int(steps.entered.numpy())
        model.coordinator.schedule(steps.gated, args=(ids,))
        assert steps.has_entered(since)
        job.cluster.kill("worker:0")
        job.cluster.restart("worker:0")
        assert steps.has_entered(since + 1)
        steps.queue.enqueue(1.0)
        model.coordinator.join()

    def with_one_more(action):
        """One more for a step that should have ended to take."""

        def run():
            try:
                action()
            finally:
                steps.queue.enqueue(1.0)

        return run

    def cut_off():
        from tests.fault import raw_worker

        codes = {}
        addresses = job.cluster.cluster_spec
        for task, index in (("worker", 0), ("ps", 0), ("ps", 1)):
            address, name = addresses[task][index], f"/job:{task}/replica:0/task:{index}"
            peer = raw_worker.Worker(address, name)
            for code in peer.cut_off(_CUT):
                codes[code] = codes.get(code, 0) + 1
            peer.close()
        return codes

    def cut_off_case():
        codes = []
        result = case(lambda: (codes.append(cut_off()), model.call(steps.plain)))()
        return result | {"codes": codes[0]}

    def pending():
        import tf_fuse

        def now():
            counters = tf_fuse.cluster_metrics().values()
            return {
                "receives": sum(m["pending_receives"] for m in counters),
                "requests": sum(m["pending_requests"] for m in counters),
            }

        coordinator.wait_until(lambda: not any(now().values()))
        return now()

    def server_killed():
        since = int(steps.entered.numpy())
        model.coordinator.schedule(steps.gated, args=(ids,))
        assert steps.has_entered(since)
        job.cluster.kill("ps:1")
        try:
            return table.observe(model.coordinator.join)
        finally:
            job.cluster.restart("ps:1")

    def coordinator_after(is_killed):
        def run():
            said = {}

            def go_on():
                said.update(run_next(mode, job.cluster.cluster_spec, folder, is_killed))

            return table.observe(go_on) | {"said": said, "seconds": no_time()}

        return run

    def no_time():
        """Of what waits for a new process, which mostly imports TensorFlow."""

    cases = {
        "first": first,
        "cancelled": case(with_one_more(cancelled), in_queue=in_queue_of_ended),
        "out_of_range_gather": case(lambda: model.call(steps.plain, [0, 100_000])),
        "out_of_range_update": case(lambda: model.call(writes_nowhere)),
        "error_beside": case(lambda: model.call(fails_beside)),
        "server_stopped": case(with_one_more(server_stopped), in_queue=in_queue_of_ended),
        "worker_stopped": case(with_one_more(worker_stopped), in_queue=in_queue, seconds=no_time),
        "worker_killed": case(with_one_more(worker_killed), in_queue=in_queue, seconds=no_time),
    }
    writes_nowhere, fails_beside = steps.writes_nowhere(), steps.fails_beside()
    if is_on:
        cases |= {"cut_off": cut_off_case, "pending": pending}
    cases |= {
        "server_killed": server_killed,
        "next_coordinator": coordinator_after(True),
        "last_coordinator": coordinator_after(False),
    }
    coordinator.finish(cases)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
