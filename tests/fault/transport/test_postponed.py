# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests that come before their step and have to come again: the values are right."""

import os

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_SUM = 66.0  # 0 + 1 + ... + 11


def test_a_request_that_is_postponed_is_sent_again():
    cases = coordinator.run(__file__)
    counters = cases["postponed"]["counters"]
    assert counters["postponed_requests"] > 0
    assert counters["fused_rpcs"] == counters["served_rpcs"] > 0
    assert "errors" not in counters and "served_errors" not in counters
    assert counters.get("pending_requests", 0) == 0
    assert set(cases["postponed"]["sums"]) == {_SUM}


def _main():
    os.environ["TF_FUSE_STEP_WAIT_MS"] = "1"
    import tensorflow as tf

    job = coordinator.Job("on", 2, 2)
    vs = job.variables([float(i) for i in range(12)])

    def postponed():
        sums = []

        def a_new_function():
            # The first steps of a function begin late on the servers, which build their part.
            @tf.function
            def step():
                return tf.add_n([v.read_value() for v in vs])

            results = [job.coordinator.schedule(step) for _ in range(20)]
            job.coordinator.join()
            sums.extend(float(result.fetch()) for result in results)
            return job.total()["postponed_requests"] > 0

        coordinator.wait_until(a_new_function, 60)
        counters = {key: count for key, count in job.total().items() if count}
        return {"sums": sums, "counters": counters}

    coordinator.finish({"postponed": postponed})


if __name__ == "__main__":
    _main()
