# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Workers that are lost before what `ClusterCoordinator.schedule` returns is fetched from them."""

import functools
import sys
import threading

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(600)]

_CASES = ("tensors", "strings", "rows")
# Whether the worker is there again when results are fetched, and has run the next call.
_WHEN = ("gone", "back", "known")


@pytest.fixture(scope="module")
def runs():
    return coordinator.run(__file__)


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("when", _WHEN)
def test_calls_whose_results_were_lost_run_again(runs, case, when):
    """The call that had ended, and the one that had not begun."""
    found = runs[f"{case} {when}"]
    assert found["returned"] == [3, 4] or found["returned"] == [4, 3], found
    assert found["calls"] in (3, 4)


class _Held:
    """Holds back what fetches a result.

    Attributes:
      asked: is set when it would begin.
      go: lets it begin.
      ended: is set afterwards.
    """

    def __init__(self, bring):
        self._bring = bring
        self.asked, self.go, self.ended = (threading.Event() for _ in range(3))

    def __call__(self, result):
        self.asked.set()
        self.go.wait()
        self._bring(result)
        self.ended.set()


def _main():
    import tensorflow as tf

    from tf_fuse._tensorflow.variables import coordinator_results

    job = coordinator.Job("on", workers=1, ps=1)
    (calls,) = job.variables([0], trainable=False)
    late = coordinator_results.class_of(as_arrays=False, late=True)
    functions = {
        "tensors": lambda number: {"number": number, "more": tf.fill([1000], number)},
        "strings": lambda number: {"number": number, "more": tf.strings.as_string(number)},
        "rows": lambda number: {"number": number, "more": tf.RaggedTensor.from_tensor([[number]])},
    }

    def lose(make, when):
        @tf.function
        def step():
            return make(calls.assign_add(1, read_value=True))

        calls.assign(0)
        job.call(step)
        bring, held = late.bring, _Held(late.bring)
        late.bring = lambda result: held(result)
        try:
            results = [job.coordinator.schedule(step)]
            held.asked.wait()
            job.cluster.kill("worker:0")
            if when != "gone":
                job.cluster.restart("worker:0")
        finally:
            late.bring = bring
        results.append(job.coordinator.schedule(step))
        if when == "known":
            coordinator.wait_until(lambda: int(calls.numpy()) == 3)
        held.go.set()
        if when == "gone":
            held.ended.wait()
            job.cluster.restart("worker:0")
        job.coordinator.join()
        returned = [int(one.fetch()["number"]) for one in results]
        return {"returned": returned, "calls": int(calls.numpy())}

    coordinator.finish(
        {
            f"{name} {when}": functools.partial(lose, make, when)
            for name, make in functions.items()
            for when in _WHEN
        }
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
