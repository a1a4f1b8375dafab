# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A variable whose update is spread over the servers, and one whose is not: values, checkpoints."""

from pathlib import Path

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = pytest.mark.cluster

_SCRIPT = str(Path(__file__).with_name("spread_cases.py"))
_ROWS, _COLUMNS = 67, 61


# Each but the first one restores the checkpoints of those before it.
_ORDER = {("on", 2): [], ("stock", 2): ["compute"], ("on", 3): ["compute"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of one optimizer, and what is fast of the other one."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        key: coordinator.run(_SCRIPT, *key, folder, *restored, speed="fast")
        for key, restored in _ORDER.items()
    }


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory):
    """Of both optimizers."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        key: coordinator.run(_SCRIPT, *key, folder, *restored) for key, restored in _ORDER.items()
    }


@pytest.fixture
def runs_of(request, optimizer):
    """The runs of a test's optimizer, if it has all of them."""
    return request.getfixturevalue("runs" if optimizer == "adam" else "whole_runs")


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory):
    """Each restores the checkpoints of those before it in all ways; the last one is of stock."""
    folder = tmp_path_factory.mktemp("checkpoints")
    order = [("stock", 2), ("on", 2), ("on", 3), ("stock", 3)]
    return {key: coordinator.run(_SCRIPT, *key, folder, "compute", "wire") for key in order}


@pytest.mark.parametrize(
    ("optimizer", "slots", "servers"),
    [("adam", 3, 2), ("adam", 3, 3), ("momentum", 1, 2), slow("momentum", 1, 3)],
)
def test_update_and_slots_are_spread_if_compute_is_the_bottleneck(
    request, servers, optimizer, slots
):
    runs = request.getfixturevalue("runs" if optimizer == "adam" or servers == 2 else "whole_runs")
    case = runs["on", servers][f"{optimizer}_compute"]
    rows = [_ROWS // servers + (i < _ROWS % servers) for i in range(servers)]
    assert [shape for _, shape in case["kernel"]] == [[count, _COLUMNS] for count in rows]
    assert sorted(server for server, _ in case["kernel"]) == list(range(servers))
    # Each piece has its slots beside it.
    beside = [[server, shape[0]] for server, shape in case["kernel"]]
    assert sorted(case["slots"]) == sorted(beside * slots)
    # One operation for each piece, the three other weights, and the iterations.
    assert case["updates"] == [servers + 3 + 1, 0]


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize(("optimizer", "slots"), [("adam", 3), slow("momentum", 1)])
def test_a_variable_stays_whole_if_the_wire_is_the_bottleneck(runs_of, servers, optimizer, slots):
    case = runs_of["on", servers][f"{optimizer}_wire"]
    ((server, shape),) = case["kernel"]
    assert shape == [_ROWS, _COLUMNS]
    assert case["slots"] == [[server, _ROWS]] * slots
    assert case["updates"] == [3 + 1 + 1, 0]


@pytest.mark.parametrize("servers", [2, 3])
def test_the_report_has_the_arithmetic(runs, servers):
    size = 4 * _ROWS * _COLUMNS
    others = 4 * (_COLUMNS + _COLUMNS * 3 + 3)
    for bottleneck, link in (("compute", 1e12), ("wire", 1e3)):
        (plan,) = runs["on", servers][f"adam_{bottleneck}"]["report"]["plans"]
        (told,) = [one for one in plan["spread"] if one["shape"] == [_ROWS, _COLUMNS]]
        # Three slots, and the figures of `Costs()`.
        assert told["update_s"] == pytest.approx(4 * size * 0.15e-9)
        assert told["share_s"] == pytest.approx(4 * (size + others) * 0.15e-9 / servers)
        assert told["wire_s"] == pytest.approx(2 * size / link)
        spread = bottleneck == "compute"
        assert told["verdict"] == ("spread" if spread else "wire")
        assert (told["pieces"], len(told["seconds"])) == ((servers, servers) if spread else (1, 0))
        whose = {one["verdict"] for one in plan["spread"] if one is not told}
        assert whose == {"share"}


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("optimizer", ["adam", slow("momentum")])
@pytest.mark.parametrize("bottleneck", ["compute", "wire"])
def test_training_has_the_bits_of_stock(runs_of, servers, optimizer, bottleneck):
    stock = runs_of["stock", 2][f"{optimizer}_compute"]
    one = runs_of["on", servers][f"{optimizer}_{bottleneck}"]
    assert (one["losses"], one["then"]) == (stock["losses"], stock["then"])
    assert len({loss[2] for loss in one["losses"] + one["then"]}) == 5


def test_training_of_pieces_has_the_bits_of_stock(runs):
    stock, one = (runs[mode, 2]["momentum_compute"] for mode in ("stock", "on"))
    assert (one["losses"], one["then"]) == (stock["losses"], stock["then"])


@pytest.mark.parametrize("optimizer", ["adam", slow("momentum")])
def test_checkpoints_have_the_tensors_of_stock(runs_of, optimizer):
    stock = runs_of["stock", 2][f"{optimizer}_compute"]["saved"]
    assert [_ROWS, _COLUMNS] in stock.values()
    for servers in (2, 3):
        for bottleneck in ("compute", "wire"):
            assert runs_of["on", servers][f"{optimizer}_{bottleneck}"]["saved"] == stock


@pytest.mark.parametrize("optimizer", ["adam", slow("momentum")])
def test_checkpoints_are_restored_by_stock_and_by_more_servers(runs_of, optimizer):
    runs = runs_of
    then = runs["stock", 2][f"{optimizer}_compute"]["then"]
    made = [f"{optimizer}-on-{one}-2-1" for one in ("compute", "wire")]
    made.append(f"{optimizer}-stock-compute-2-1")
    restored = runs["stock", 2][f"{optimizer}_compute_restored"]
    assert restored == dict.fromkeys(sorted(made), then)
    made += [f"{optimizer}-on-{one}-3-1" for one in ("compute", "wire")]
    restored = runs["on", 3][f"{optimizer}_compute_restored"]
    assert restored == dict.fromkeys(sorted(made), then)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_checkpoints_are_restored_spread_or_not_and_by_other_numbers_of_servers(
    all_runs, optimizer
):
    runs = all_runs
    then = runs["stock", 2][f"{optimizer}_compute"]["then"]
    made = [f"{optimizer}-stock-compute-2-1"]
    for servers in (2, 3):
        made += [f"{optimizer}-on-{one}-{servers}-1" for one in ("compute", "wire")]
        for bottleneck in ("compute", "wire"):
            restored = runs["on", servers][f"{optimizer}_{bottleneck}_restored"]
            assert restored == dict.fromkeys(sorted(made), then)
    made.append(f"{optimizer}-stock-compute-3-1")
    restored = runs["stock", 3][f"{optimizer}_compute_restored"]
    assert restored == dict.fromkeys(sorted(made), then)


def test_a_program_whose_optimizer_takes_no_pieces_keeps_its_variables_whole(runs):
    case = runs["on", 2]["not_asked"]
    assert (case["count"], case["whole"]) == (4, True)
    assert sorted(case["verdicts"]) == ["not_asked", "share", "share", "share"]
