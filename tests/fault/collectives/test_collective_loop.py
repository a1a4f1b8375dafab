# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of four ranks fails at some moment, again and again: the others always end.

Part of `make collectives` (SECONDS=60 SEED=1), not of the tests.
"""

import os
import random
import time

import pytest

from tests.cluster.collectives.ranks import Error, Ranks

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault,
    pytest.mark.skipif(
        os.environ.get("TF_FUSE_TEST_COLLECTIVES") != "1", reason="long: make collectives"
    ),
]

_SECONDS = float(os.environ.get("TF_FUSE_TEST_SECONDS", "60"))
_SEED = int(os.environ.get("TF_FUSE_TEST_SEED", "1"))
_RANKS = 4
_ENDLESS = 10_000_000  # calls
_LIMIT_S = 3.0
_OPS = ["all_reduce", "reduce_scatter", "all_gather"]
_PATHS = ["", "grpc", "tcp,grpc"]
# One element: most ranks have no shard, and only wait for others to take theirs.
_ELEMENTS = [1, 17, 1000, 20_000, 300_000, 3_000_000]
_BY_ITSELF = ["shape", "type", "abort", "exit"]
_BY_SIGNAL = ["killed", "stopped"]
# What no other rank can hear of, in TensorFlow's ring either: there is a limit.
_SILENT = ["cancel", "leave", "stopped"]


def _round(seed):
    """What one round does."""
    rng = random.Random(seed)
    kind = rng.choice([*_BY_ITSELF, *_BY_SIGNAL, "cancel", "leave"])
    algorithm = rng.choice(["direct", "direct", "direct", "ring"])
    # TensorFlow makes the group; who dies before leaves the others waiting for it.
    known = rng.random() < 0.8
    limited = kind in _SILENT or algorithm == "ring" or not known or rng.random() < 0.3
    return {
        "kind": kind,
        "failing": rng.randrange(_RANKS),
        "op": rng.choice(_OPS),
        "elements": rng.choice(_ELEMENTS),
        "calls": rng.choice([0, 1, 2, rng.randrange(3, 40)]),
        "pause": rng.choice([0.0, rng.random() * 0.02, rng.random()]),
        "timeout_seconds": _LIMIT_S if limited else 0.0,
        "known": known,
        "path": rng.choice(_PATHS),
        "algorithm": algorithm,
    }


def _fail(ranks, plan, others):
    """Starts all ranks, and lets one fail."""
    args = {key: plan[key] for key in ("op", "elements")}
    failing, kind = plan["failing"], plan["kind"]
    if plan["known"]:
        ranks.values("attempt", **args)
    attempt = args | {"calls": _ENDLESS, "timeout_seconds": plan["timeout_seconds"]}
    ranks.start("attempt", others, **attempt)
    if kind not in _BY_SIGNAL:
        ranks.start("fails", [failing], kind=kind, calls=plan["calls"], **args)
        return
    ranks.start("attempt", [failing], **attempt)
    if plan["calls"] > 2:
        ranks.begun(failing)
    time.sleep(plan["pause"])  # some moment
    if kind == "killed":
        ranks.kill(failing)
    else:
        ranks.pause(failing)


def _run(plan):
    env = {
        "TF_FUSE_COLLECTIVE_PATHS": plan["path"],
        "TF_FUSE_COLLECTIVE_ALGORITHM": plan["algorithm"],
    }
    with Ranks(["grpc+fuse"] * _RANKS, env) as ranks:
        others = [rank for rank in range(_RANKS) if rank != plan["failing"]]
        _fail(ranks, plan, others)
        results = ranks.wait(others)
        for result in results:
            assert isinstance(result, dict) and isinstance(result["error"], Error), result
        if plan["kind"] == "stopped":  # it may hold what another one lent
            ranks.resume(plan["failing"])
            (late,) = ranks.wait([plan["failing"]])
            assert isinstance(late["error"], Error), late
        ranks.start("wait_for_gauges", others)
        for counters in ranks.wait(others):
            assert counters["lent_chunks"] == counters["pending_requests"] == 0


@pytest.mark.timeout(_SECONDS + 300)
def test_the_others_always_end():
    end, rounds = time.monotonic() + _SECONDS, 0
    while time.monotonic() < end:
        plan = _round(_SEED * 1_000_000 + rounds)
        try:
            _run(plan)
        except AssertionError as error:
            raise AssertionError(f"round {rounds}: {plan}: {error}") from error
        rounds += 1
    print(f"{rounds} rounds")
    assert rounds > 0
