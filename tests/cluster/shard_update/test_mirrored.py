# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""MirroredStrategy with `shard_weight_update`: each replica of a process keeps a part."""

import numpy as np
import pytest

from tests.cluster.collectives.ranks import DEADLINE_S, Ranks
from tests.cluster.shard_update.checks import ELEMENTS
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_SLOTS = {"Adam": 2, "Lion": 1}


class _Process:
    """A process with as many replicas."""

    def __init__(self, replicas, ranks):
        self.replicas, self._ranks = replicas, ranks
        self._off = {}

    def train(self, optimizer, **args):
        """With the option on."""
        self._ranks.start("trained_on_devices", optimizer=optimizer, **args)
        (result,) = self._ranks.wait(seconds=3 * DEADLINE_S)
        assert isinstance(result, dict), f"{result}\n{self._ranks.log(0)}"
        return result

    def off(self, optimizer):
        """With the option off."""
        if optimizer not in self._off:
            self._off[optimizer] = self.train(optimizer, on=False)
        return self._off[optimizer]


@pytest.fixture(scope="module")
def process(request):
    with Ranks(["grpc+fuse"], devices=request.param, server=False) as ranks:
        yield _Process(request.param, ranks)


def _in(*replicas):
    return pytest.mark.parametrize("process", replicas, indirect=True, scope="module")


def _of(cases):
    """Of numbers of replicas and something else, those of a number together."""
    return pytest.mark.parametrize(
        ("process", "group_size"), cases, indirect=["process"], scope="module"
    )


@_of(slow_but([(2, 0), (3, 0), (8, 0), (4, 2), (6, 2), (6, 3)], {(3, 0)}.__contains__))
def test_the_bits_in_a_part_of_the_memory(process, group_size):
    replicas = process.replicas
    groups = replicas // (group_size or replicas)
    for optimizer, slots in sorted(_SLOTS.items()):
        if replicas > 4 and optimizer == "Lion":
            continue  # Tracing so many takes long.
        on, off = process.train(optimizer, group_size=group_size), process.off(optimizer)
        assert len(set(on["losses"])) == len(on["losses"])
        assert (on["losses"], on["reads"]) == (off["losses"], off["reads"])
        ((here, whole, _, version),) = on["held"]
        assert version == 4
        assert whole == replicas * 4 * slots * ELEMENTS
        # Each element once, and what fills registers: of each slot's parts the first and last.
        once = groups * 4 * slots * ELEMENTS
        assert once <= here <= once + 4 * slots * replicas * 6 * 2 * 64
        assert [one["groups"] for one in on["functions"]] == [groups]


@_in(slow(2), 3)
def test_the_bits_with_weights_in_parts(process):
    replicas = process.replicas
    for optimizer, slots in sorted(_SLOTS.items()):
        on, off = process.train(optimizer, gather="first_use"), process.off(optimizer)
        assert len(set(on["losses"])) == len(on["losses"])
        assert (on["losses"], on["reads"]) == (off["losses"], off["reads"])
        held = slots + 1
        ((here, whole, _, version),) = on["held"]
        assert version == 4
        assert whole == replicas * 4 * held * ELEMENTS
        assert 4 * held * ELEMENTS <= here <= 4 * held * (ELEMENTS + replicas * 6 * 2 * 64)
        assert on["gathers"] == ["first_use"] * 6 * replicas


@pytest.mark.slow
@_in(4)
def test_norms_in_groups(process):
    on, off = process.train("Lamb", group_size=2), process.off("Lamb")
    pairs = list(zip(on["values"], off["values"], strict=True))
    assert 0 < max(np.max(np.abs(np.subtract(a, b))) for a, b in pairs) <= 1e-5
    ((_, whole, _, _),) = on["held"]
    assert whole == 4 * 4 * 2 * ELEMENTS


@_in(4)
def test_groups_of_another_size_than_replicas_allow(process):
    on, off = process.train("SGD", group_size=3), process.off("SGD")
    (function,) = on["functions"]
    assert (function["sharded"], function["reason"]) == (False, "group_size")
    assert on["losses"] == off["losses"]
