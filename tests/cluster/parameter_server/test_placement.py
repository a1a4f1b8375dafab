# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variables on real parameter servers: where they are, values, checkpoints, pieces."""

from pathlib import Path

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = pytest.mark.cluster

_SCRIPT = str(Path(__file__).with_name("placement_cases.py"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Each restores the checkpoints of those before it."""
    folder = tmp_path_factory.mktemp("checkpoints")
    order = [("stock", 2), ("on", 2), ("on", 3)]
    return {key: coordinator.run(_SCRIPT, *key, folder, speed="fast") for key in order}


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    return coordinator.run(_SCRIPT, "on", 3, folder, speed="slow")


@pytest.fixture
def of_servers(request, servers):
    """What a job of some number of servers gives beside checkpoints of others."""
    if servers == 3:
        return request.getfixturevalue("of_three")
    return request.getfixturevalue("runs")["on", servers]


def test_without_the_option_variables_are_placed_in_turn(runs):
    assert runs["stock", 2]["floats"] == [776, 40]
    assert runs["on", 2]["floats_without_the_option"] == [776, 40]
    assert runs["on", 3]["floats_without_the_option"] == [306, 209, 301]


def test_servers_have_the_same(runs):
    assert runs["on", 2]["floats"] == [408, 408]
    # (Eight of 97 floats, and eight of 5.)
    assert sorted(runs["on", 3]["floats"]) == [214, 301, 301]


def test_training_has_the_same_bits(runs):
    stock = runs["stock", 2]["training"]
    for key in (("on", 2), ("on", 3)):
        one = runs[key]["training"]
        assert "raised" not in one, one
        assert (one["losses"], one["then"]) == (stock["losses"], stock["then"])
        assert one["weights"] == stock["weights"]


def test_slots_are_beside_their_weights(runs):
    for key in (("on", 2), ("on", 3)):
        assert runs[key]["training"]["slots"] == [[True, True]] * 6


def test_a_model_is_planned_and_reported(runs):
    report = runs["on", 2]["training"]["report"]
    assert {one["why"] for one in report["variables"]} == {"planned"}
    (plan,) = report["plans"]
    spread = plan.pop("spread")
    assert plan == {"variables": 8, "not_made": [], "reason": ""}
    # No weight is more than a server's share; one element is not looked at.
    assert [one["verdict"] for one in spread] == ["share"] * 5
    kept = sum(one["kept_bytes"] for one in report["servers"])
    # Weights and two slots each, of floats; and the iteration and the learning rate.
    assert kept == 3 * 4 * (16 * 64 + 64 + 64 * 64 + 64 + 64 + 1) + 8 + 4


def test_checkpoints_of_other_numbers_of_servers_are_restored(runs):
    then = runs["stock", 2]["training"]["then"]
    assert runs["on", 2]["restored"] == {"on2-1": then, "stock2-1": then}
    assert runs["on", 3]["restored"]["on2-1"] == then
    assert runs["on", 3]["restored"]["on3-1"] == then


def test_initial_values_have_the_same_bits_and_are_made_once(runs):
    stock = runs["stock", 2]["initial_values"]
    assert "raised" not in stock, stock
    assert stock[1] == 1
    for key in (("on", 2), ("on", 3)):
        assert runs[key]["initial_values"] == stock


def test_a_variable_that_appears_late_goes_where_there_is_room(runs):
    values, first, late = runs["on", 2]["late"]
    assert values == [2000.0, 3000.0]
    assert late == 1 - first


@pytest.mark.parametrize("servers", [2, slow(3)])
def test_explicit_devices_and_colocation(of_servers, servers):
    made, beside, free, text = of_servers["explicit"]
    assert made == [servers - 1] * 3 and beside == servers - 1
    assert free == ["ps", 0]
    assert text == (
        f"the variable 'lost' is to be on /job:ps/task:{servers}, but the cluster has {servers} "
        "parameter servers, from task 0 on: change the device scope around it"
    )


@pytest.mark.parametrize("servers", [2, slow(3)])
def test_pieces_are_on_different_servers_and_saved_as_one(of_servers, servers):
    case = of_servers["pieces"]
    assert sorted(case["table"]) == sorted(case["kernel"]) == list(range(servers))
    rows = [100_000 // servers + (i < 100_000 % servers) for i in range(servers)]
    assert case["shapes"] == [[r, 12] for r in rows]
    assert case["whole"] == [True, True]
    assert case["small"] == "CachingVariable"
    assert case["partitions"] == {
        "ballast": servers, "embeddings": servers, "kernel": servers, "small": 1, "fixed": 1,
    }  # fmt: skip
    # With two slots each, which are expected as long as there are none at all.
    kept = [size - 3 * 4_000_000 * (server == 1) for server, size in enumerate(case["kept"])]
    assert sum(kept) == 3 * 4 * (300_000 + 1_200_000 + 1_000_000 + 100)
    assert max(kept) <= 1.001 * sum(kept) / servers


@pytest.mark.parametrize("servers", [2, slow(3)])
def test_of_a_plan_only_what_dominates_is_split(of_servers, servers):
    case = of_servers["planned_pieces"]
    assert case["big"] == list(range(servers))
    assert case["why"] == ["planned"]
    assert case["plans"] == [{"variables": servers + 6, "not_made": [], "reason": "", "spread": []}]
    assert len(case["others"]) == 6 and case["imbalance"] <= 1.1


def test_a_model_that_cannot_be_planned_is_placed_as_it_is_made(runs):
    places, why, (plan,) = runs["on", 2]["unplanned"]
    assert places == [0, 1] and why == ["online", "online"]
    assert plan["variables"] == 0
    assert plan["reason"].startswith("the model cannot be built abstractly: ")


@pytest.mark.parametrize("servers", [2, slow(3)])
def test_a_keras_model_is_trained_in_pieces(of_servers, servers):
    case = of_servers["keras_pieces"]
    losses, count, slots = case["whole"]
    assert count == 6 and slots == [2] * 6
    in_pieces, count, slots = case["pieces"]
    assert count == len(slots) > 6 and set(slots) == {2}
    assert in_pieces == losses
