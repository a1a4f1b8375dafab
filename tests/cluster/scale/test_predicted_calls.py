# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A step graph has the receives that a real job makes."""

import pytest

from examples.job import make_workload
from examples.session import Session
from tests.slow_cases import slow
from tf_fuse.scale.steps.trace import recorded_variables, trace

pytestmark = pytest.mark.cluster
_STEPS = 6


def _traced(spec):
    with recorded_variables() as variables:
        program = make_workload(spec).build()
    iterator = iter(program.dataset(0, 1))
    return trace("model", lambda one: program.step(next(one)), (iterator,), variables)


@pytest.mark.parametrize(
    "spec",
    [
        {"workload": "features", "options": {"features": 20}},
        slow({"workload": "rfc", "options": {"embeddings": 3, "shards": 1}}),
    ],
    ids=["features", "rfc"],
)
def test_receives_per_step(spec):
    predicted = _traced(spec).on(2)
    for mode, graph in zip(("count", "fused"), predicted, strict=True):
        with Session({**spec, "mode": mode, "workers": 1, "ps": 2}) as session:
            session.wait_ready()
            session.run(_STEPS)
            counted = session.run(_STEPS)["recv_rpcs_per_step"]
        # Each step has one receive outside of its function.
        assert counted == graph.rpcs + 1, mode
