# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a sending task answers: to a single receive of a stock task, to a fused one here.

The test is the receiver and the client of the steps (`raw_worker`), so that ids are reused, and
requests repeated and cancelled, exactly when it says.
"""

import concurrent.futures
import contextlib
import itertools
import re

import pytest

from examples import standalone
from tests.fault import coordinator, raw_worker, table

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

LocalCluster = standalone.cluster_package().LocalCluster

_SINGLE, _FUSED = ("gated",), ("early", "gated")
_CACHE = "rpc_options { cache_rpc_response: true }"


class Task:
    """A task and a client of it.

    Attributes:
      sender: the client.
      names: what a receive asks for.
      steps: ids of steps, each once.
    """

    def __init__(self, mode, session_config=None):
        self.names = _SINGLE if mode == "stock" else _FUSED
        protocol = "grpc" if mode == "stock" else "grpc+fuse"
        self.cluster = LocalCluster(1, 0, protocol, session_config=session_config)
        address = self.cluster.cluster_spec["worker"][0]
        self.sender = raw_worker.Sender(address, mode != "stock")
        self.steps = itertools.count(1)

    def close(self):
        self.sender.close()
        self.cluster.close()

    def left(self):
        """The gauges, once they have come to rest."""
        gauges = {}

        def at_rest():
            counters = self.sender.counters()
            gauges.update({k: counters.get(k) for k in ("open_steps", "pending_requests")})
            return gauges["open_steps"] in (0, None) and not gauges["pending_requests"]

        coordinator.wait_until(at_rest)
        return gauges

    @contextlib.contextmanager
    def step(self):
        """A step that has not begun; it is ended on leaving."""
        step = Step(self)
        yield step
        step.end()


class Step:
    """A step of a task.

    Attributes:
      number: its id.
    """

    def __init__(self, task):
        self._task = task
        self._graph = task.sender.graph()
        self._running = None
        self.number = next(task.steps)

    def begin(self):
        """Begins it; with a new graph if it has begun before."""
        if self._running is not None:
            self._running.cancel()
            self._graph = self._task.sender.graph()
        self._running = self._task.sender.run(self._graph.handle, self.number)

    def receive(self, names=None, **kwargs):
        """Starts a receive, and returns when the task has it."""
        answer = self._task.sender.receive(self.number, names or self._task.names, **kwargs)
        self._task.sender.round_trips()
        return answer

    def open_gate(self, name="gated"):
        self._task.sender.open_gate(self._graph, name)

    def cleanup(self):
        self._task.sender.cleanup(self.number)

    def end(self):
        if self._running is not None:
            self._running.cancel()
        self.cleanup()

    def outcome(self, answer):
        """How a receive ended; of an error the code and the first line of the text."""
        return table.observe(lambda: self._describe(answer), str)

    def _describe(self, answer):
        import grpc
        import numpy as np

        try:
            response = answer.result()
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                return "`UNAVAILABLE`"  # the text is gRPC's, and has several forms
            # Which RPC it was, and the request, differ; so does the step's id.
            text = re.sub(
                r"^.*( request was received twice).*$", r"\1", error.details(), flags=re.S
            )
            text = re.sub(rf"\b{self.number}\b", "N", text.strip().splitlines()[0])
            return f"`{error.code().name}`: {text}"
        data = np.float32(raw_worker.GATED).tobytes()
        return "the value" if data in response.tensor else f"something else: {response}"


@contextlib.contextmanager
def _tasks(session_config=None):
    """A stock task and one of ours, started at the same time."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        starting = {mode: pool.submit(Task, mode, session_config) for mode in ("stock", "on")}
    tasks = {mode: task.result() for mode, task in starting.items()}
    yield tasks
    for task in tasks.values():
        task.close()


@pytest.fixture(scope="module")
def tasks():
    with _tasks() as started:
        yield started


@pytest.fixture(scope="module")
def caching_tasks():
    with _tasks(_CACHE) as started:
        yield started


def _value_after_request(task):
    with task.step() as step:
        answer = step.receive()
        step.begin()
        step.open_gate()
        return step.outcome(answer)


def _cancelled(task):
    with task.step() as step:
        step.begin()
        other = step.receive(["never"])
        step.receive().cancel()
        return step.outcome(other)


def _cancelled_before_the_step(task):
    with task.step() as step:
        step.receive().cancel()
        step.begin()
        return step.outcome(step.receive(["never"]))


def _deadline(task):
    with task.step() as step:
        step.begin()
        other = step.receive(["never"])
        limit = 0.5
        # It may have passed before the task had the request.
        while (answer := step.receive(timeout=limit)).done() and not other.done():
            limit *= 2
        answer.exception()
        return step.outcome(other)


def _stopped_until_deadline(task):
    with task.step() as step:
        step.begin()
        answer = step.receive(timeout=3)
        task.cluster.stop("worker:0")
        try:
            return step.outcome(answer)
        finally:
            task.cluster.cont("worker:0")


def _cleaned_up(task):
    with task.step() as step:
        step.begin()
        answer = step.receive()
        step.cleanup()
        return step.outcome(answer)


def _cleaned_up_and_perhaps_not_told(task):
    with task.step() as step:
        step.begin()
        answer = step.receive(timeout=3)
        step.cleanup()
        return step.outcome(answer)


def _step_id_reused(task):
    with task.step() as step:
        step.begin()
        answer = step.receive()
        step.cleanup()
        answer.exception()
        step.begin()
        answer = step.receive()
        step.open_gate()
        return step.outcome(answer)


def _failed(task):
    with task.step() as step:
        step.begin()
        answer = step.receive([name.replace("gated", "failing") for name in task.names])
        step.open_gate("failing")
        return step.outcome(answer)


def _duplicate_of_a_pending(task):
    with task.step() as step:
        step.begin()
        first = step.receive(request=7)
        result = step.outcome(step.receive(request=7))
        step.open_gate()
        return result | {"first": step.outcome(first)["outcome"]}


def _duplicate_waits_with_the_first(task):
    with task.step() as step:
        step.begin()
        first = step.receive(request=7)
        second = step.receive(request=7)
        step.open_gate()
        return step.outcome(second) | {"first": step.outcome(first)["outcome"]}


def _duplicate_of_an_answered(task):
    with task.step() as step:
        step.begin()
        first = step.receive(request=8)
        step.open_gate()
        first = step.outcome(first)["outcome"]
        return step.outcome(step.receive(request=8)) | {"first": first}


def _request_id_zero_twice(task):
    for _ in range(2):
        with task.step() as step:
            step.begin()
            answer = step.receive(request=0)
            step.open_gate()
            result = step.outcome(answer)
    return result


def _killed(task):
    step = Step(task)  # nobody is left to end it
    step.begin()
    answer = step.receive()
    task.cluster.kill("worker:0")
    return step.outcome(answer)


_CASES = {
    "value_after_request": _value_after_request,
    "cancelled": _cancelled,
    "cancelled_before_the_step": _cancelled_before_the_step,
    "deadline": _deadline,
    "stopped_until_deadline": _stopped_until_deadline,
    "cleaned_up": _cleaned_up,
    "step_id_reused": _step_id_reused,
    "failed": _failed,
    "duplicate_of_a_pending": _duplicate_of_a_pending,
    "duplicate_of_an_answered": _duplicate_of_an_answered,
    "request_id_zero_twice": _request_id_zero_twice,
    # Last, since the tasks are gone then.
    "killed": _killed,
}


# With the option that keeps answers, for receivers that ask again because one was lost.
_CASES_WITH_CACHE = {
    "cached_value": _value_after_request,
    "cached_cleaned_up": _cleaned_up_and_perhaps_not_told,
    "cached_failed": _failed,
    "cached_duplicate_of_a_pending": _duplicate_waits_with_the_first,
    "cached_duplicate_of_an_answered": _duplicate_of_an_answered,
}


def _outcomes(tasks, cases):
    # The cases of one task are in order; both tasks run theirs at the same time.
    def run(task):
        results = {}
        for case, function in cases.items():
            if case == "killed":
                results["left"] = task.left()
            results[case] = function(task)
        if "left" not in results:
            results["left"] = task.left()
        return results

    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = {mode: pool.submit(run, task) for mode, task in tasks.items()}
    return {mode: future.result() for mode, future in running.items()}


@pytest.fixture(scope="module")
def outcomes(tasks):
    return _outcomes(tasks, _CASES)


@pytest.fixture(scope="module")
def outcomes_with_cache(caching_tasks):
    return _outcomes(caching_tasks, _CASES_WITH_CACHE)


@pytest.mark.parametrize("case", sorted(_CASES))
def test_outcome(outcomes, case):
    table.check(__file__, case, outcomes["stock"][case], outcomes["on"][case])


def test_a_duplicate_takes_nothing_from_the_first(outcomes):
    for mode in outcomes:
        for case in ("duplicate_of_a_pending", "duplicate_of_an_answered"):
            assert outcomes[mode][case]["first"] == "the value"


def test_no_step_and_no_request_is_left(outcomes):
    assert outcomes["on"]["left"] == {"open_steps": 0, "pending_requests": 0}


@pytest.mark.parametrize("case", sorted(_CASES_WITH_CACHE))
def test_outcome_with_cache(outcomes_with_cache, case):
    table.check(__file__, case, outcomes_with_cache["stock"][case], outcomes_with_cache["on"][case])


def test_a_cache_of_answers_leaves_nothing(outcomes_with_cache):
    assert outcomes_with_cache["on"]["left"] == {"open_steps": 0, "pending_requests": 0}
    for mode in outcomes_with_cache:
        for case in ("cached_duplicate_of_a_pending", "cached_duplicate_of_an_answered"):
            assert outcomes_with_cache[mode][case]["first"] == "the value"


def test_every_case_has_a_row():
    assert sorted(table.cases(__file__)) == sorted([*_CASES, *_CASES_WITH_CACHE])
