# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calls of ranks that are to fail: time limits, errors, and the check that nothing is left."""

import time

import pytest

from tests.cluster.collectives.ranks import Error

STOCK, OURS = ["grpc"] * 3, ["grpc+fuse"] * 3
ENDLESS = 10_000_000  # calls
LARGE = 3_000_000  # elements
_LIMIT_S = 4.0  # of a collective, on an idle machine: in stock, some ranks wait until then
_TIMES_A_CALL = 5  # A limit that passes is at least so many times what a call takes.
# And at most this, so that tests end.
_LONGEST_LIMIT_S = 15.0
SLOW = pytest.mark.slow
# A fault by each data path once; `make slow` has the other op, too.
PATH_AND_OP = [
    ("", "reduce_scatter"),
    ("grpc", "all_reduce"),
    ("tcp,grpc", "reduce_scatter"),
    pytest.param("", "all_reduce", marks=SLOW),
    pytest.param("grpc", "reduce_scatter", marks=SLOW),
    pytest.param("tcp,grpc", "all_reduce", marks=SLOW),
]
CANCELLED, INVALID, DEADLINE, INTERNAL, UNAVAILABLE = 1, 3, 4, 13, 14


def failed(results):
    """Return the errors of results; each result must have one."""
    errors = []
    for result in results:
        error = result.get("error") if isinstance(result, dict) else result
        assert isinstance(error, Error), result
        errors.append(error)
    return errors


def nothing_left(ranks, living):
    """Gauges fall to zero in ranks that live."""
    ranks.start("wait_for_gauges", living)
    for counters in ranks.wait(living):
        assert counters["lent_chunks"] == 0
        assert counters["pending_requests"] == 0


def with_time_limit(ranks, **args):
    """Let all ranks call an op; return the arguments, with a time limit that is long enough."""
    start = time.monotonic()
    ranks.values("attempt", **args)
    taken = time.monotonic() - start
    limit = min(_LONGEST_LIMIT_S, max(_LIMIT_S, _TIMES_A_CALL * taken))
    return args | {"timeout_seconds": limit}


def under_way(ranks, op):
    """Lets all ranks call an op again and again."""
    args = with_time_limit(ranks, op=op, elements=LARGE)
    ranks.start("attempt", calls=ENDLESS, **args)
    ranks.begun(0)
