# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic behind the tables: no process is started here."""

import math

import pytest

from benchmarks import by_size, frame_paths, fuse_recv, large_tensors
from examples import compare


def _round(rate, losses, rpcs=None, **cpu):
    return {
        "steps_per_s": rate,
        "recv_rpcs_per_step": rpcs,
        "cpu_ms_per_step": cpu,
        "losses": losses,
    }


def _numbers(rate, rpcs, losses=(1.0,)):
    return {
        "steps_per_s": {"median": rate, "min": rate, "max": rate},
        "recv_rpcs_per_step": rpcs,
        "losses": list(losses),
    }


def test_summary_of_rounds():
    rounds = [
        _round(10.0, [3.0, 2.0], 7.0, worker=1.0, ps=4.0),
        _round(40.0, [1.0, 0.5], 9.0, worker=2.0, ps=6.0),
        _round(20.0, [0.25], 7.0, worker=9.0, ps=5.0),
    ]
    assert compare.summarize(rounds) == {
        "steps_per_s": {"median": 20.0, "min": 10.0, "max": 40.0},
        "recv_rpcs_per_step": 7.0,
        "cpu_ms_per_step": {"ps": 5.0, "worker": 2.0},
        "losses": [3.0, 2.0, 1.0, 0.5, 0.25],
    }


def test_receives_that_nothing_counts_are_none():
    assert compare.summarize([_round(1.0, [], None, worker=0.0)])["recv_rpcs_per_step"] is None


def test_ratios():
    modes = {
        "stock": _numbers(10.0, 200.0),
        "fused": _numbers(40.0, 2.0),
        "local": _numbers(60.0, 0.0),
    }
    assert compare.ratios(modes) == {"speedup": 4.0, "rpc_reduction": 0.99, "vs_local": 1.5}


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("stock", "local"), set()),
        (("fused", "local"), {"vs_local"}),
        (("stock", "fused"), {"speedup", "rpc_reduction"}),
    ],
)
def test_ratios_of_modes_that_did_not_run_are_left_out(modes, expected):
    assert set(compare.ratios({mode: _numbers(1.0, 1.0) for mode in modes})) == expected


def test_no_reduction_of_nothing():
    modes = {"stock": _numbers(1.0, 0.0), "fused": _numbers(1.0, 0.0)}
    assert compare.ratios(modes) == {"speedup": 1.0}


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 2.0], 0.0),
        ([1.0, 2.5], 0.5),
        ([1.0], math.inf),
        ([1.0, 2.0, 3.0], math.inf),
    ],
)
def test_loss_differences(losses, expected):
    modes = {"stock": _numbers(1.0, 1.0, [1.0, 2.0]), "fused": _numbers(1.0, 1.0, losses)}
    assert compare.max_loss_differences(modes) == {"fused": expected}


def test_a_loss_that_is_no_number_is_a_difference():
    modes = {
        "stock": _numbers(1.0, 1.0, [1.0, 2.0, 3.0]),
        "fused": _numbers(1.0, 1.0, [1.0, math.nan, 9.0]),
    }
    assert math.isnan(compare.max_loss_differences(modes)["fused"])
    assert fuse_recv.comparison_of_losses(modes, in_order=True)["losses_equal"] is False


def test_losses_of_several_workers_are_not_compared():
    modes = {"stock": _numbers(1.0, 1.0, [1.0]), "fused": _numbers(1.0, 1.0, [2.0])}
    assert fuse_recv.comparison_of_losses(modes, in_order=False) == {}
    assert fuse_recv.comparison_of_losses(modes, in_order=True) == {
        "max_loss_difference": {"fused": 1.0},
        "losses_equal": False,
    }


def test_speedup_by_round_pairs_the_rounds():
    rounds = {
        "stock": [_round(rate, []) for rate in (10.0, 20.0, 5.0)],
        "fused": [_round(rate, []) for rate in (20.0, 30.0, 20.0)],
    }
    assert fuse_recv.comparison_of_rounds(rounds) == {
        "speedup_by_round": {"median": 2.0, "min": 1.5, "max": 4.0}
    }


def test_packing_is_compared_by_round_in_time_and_cpu_time():
    rounds = {
        "fused": [_round(rate, [], worker=4.0, ps=4.0) for rate in (10.0, 20.0, 5.0)],
        "packed": [_round(rate, [], worker=2.0, ps=4.0) for rate in (20.0, 25.0, 20.0)],
    }
    assert fuse_recv.comparison_of_rounds(rounds) == {
        "packing": {
            "time": {"median": 0.5, "min": 0.25, "max": 0.8},
            "cpu": {"median": 0.75, "min": 0.75, "max": 0.75},
        }
    }


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"fused": [1.0], "packed": [1.0], "local": [2.0]}, True),
        ({"fused": [1.0], "packed": [2.0]}, False),
        ({"stock": [1.0], "fused": [1.0], "packed": [2.0]}, False),
        ({"stock": [1.0], "local": [2.0]}, None),
    ],
)
def test_losses_of_all_clusters_must_be_equal(losses, expected):
    modes = {mode: _numbers(1.0, 1.0, values) for mode, values in losses.items()}
    assert fuse_recv.comparison_of_losses(modes, in_order=True).get("losses_equal") is expected


def test_the_one_process_counts_as_a_worker():
    numbers = fuse_recv.mode_numbers("local", [_round(10.0, [1.0], local=3.0)])
    assert numbers["cpu_ms_per_step"] == {"worker": 3.0, "ps": 0.0}
    assert numbers["recv_rpcs_per_step"] == 0.0


def test_pass_counters_add_up_over_tasks():
    tasks = {
        "/job:ps/replica:0/task:0": {
            "groups": 0,
            "packed_groups": 0,
            "fused_receives": 0,
            "fallbacks": 2,
            "errors": 0,
            "skipped": {},
        },
        "/job:worker/replica:0/task:0": {
            "groups": 6,
            "packed_groups": 5,
            "fused_receives": 900,
            "fallbacks": 0,
            "errors": 1,
            "skipped": {"may_be_dead": 3, "alone": 4},
        },
        "/job:worker/replica:0/task:1": {
            "groups": 6,
            "packed_groups": 5,
            "fused_receives": 900,
            "fallbacks": 0,
            "errors": 0,
            "skipped": {"alone": 4},
        },
    }
    assert fuse_recv.pass_counters(tasks) == {
        "groups": 12,
        "packed_groups": 10,
        "fused_receives": 1800,
        "fallbacks": 2,
        "errors": 1,
        "skipped": {"alone": 8, "may_be_dead": 3},
    }


def test_large_tensors_row():
    rounds = {
        "packed": [_round(100.0, [], worker=1.0, ps=2.0), _round(50.0, [], worker=1.0, ps=2.0)],
        "beside": [_round(200.0, [], worker=0.5, ps=1.0), _round(200.0, [], worker=0.5, ps=1.0)],
    }
    assert large_tensors.row(4096, 20, rounds) == {
        "tensor_bytes": 4096,
        "steps": 20,
        "ms_per_step": {
            "packed": {"median": 15.0, "min": 10.0, "max": 20.0},
            "beside": {"median": 5.0, "min": 5.0, "max": 5.0},
        },
        "cpu_ms_per_step": {"packed": 3.0, "beside": 1.5},
        "packed_over_beside": {"median": 3.0, "min": 2.0, "max": 4.0},
    }


@pytest.mark.parametrize(
    ("medians", "expected"),
    [([0.5, 1.0, 1.1, 0.9], 20), ([1.2, 0.5], 0), ([0.5, 0.6], 20), ([], 0)],
)
def test_the_threshold_ends_at_the_first_size_that_packs_slower(medians, expected):
    rows = [
        {"tensor_bytes": 10 * (i + 1), "packed_over_beside": {"median": m}}
        for i, m in enumerate(medians)
    ]
    assert large_tensors.largest_worth_packing(rows) == expected


@pytest.mark.parametrize(
    ("tensor_bytes", "expected"), [(1 << 14, 100), (1 << 20, 64), (1 << 24, 5)]
)
def test_steps_per_round(tensor_bytes, expected):
    assert by_size.steps_per_round(8 * tensor_bytes) == expected


def _transfers(rpcs, beside):
    return {
        "ps:0": {"fused_rpcs": 0, "beside_tensors": 0},
        "worker:0": {"fused_rpcs": rpcs, "beside_tensors": beside},
    }


def test_tensors_took_the_way_of_the_variant():
    large_tensors.check_path("packed", 64, 8, _transfers(10, 0))
    large_tensors.check_path("beside", 64, 8, _transfers(10, 80))


@pytest.mark.parametrize(
    ("variant", "rpcs", "beside", "expected", "limit"),
    [("packed", 10, 8, 0, 1 << 30), ("beside", 10, 72, 80, 1), ("packed", 0, 0, 0, 1 << 30)],
)
def test_the_wrong_way_is_an_error(variant, rpcs, beside, expected, limit):
    with pytest.raises(large_tensors.WrongPathError) as caught:
        large_tensors.check_path(variant, 64, 8, _transfers(rpcs, beside))
    assert str(caught.value) == (
        f"variant {variant}, 64 bytes: {beside} tensors of {rpcs} fused receives went beside the "
        f"frame, expected {expected} of more than 0; does the library read "
        f"TF_FUSE_MAX_PACKED_TENSOR_BYTES? It was {limit}."
    )


def test_frame_paths_row():
    rounds = {
        "grpc": [_round(100.0, [], worker=1.0, ps=2.0), _round(50.0, [], worker=1.0, ps=2.0)],
        "shm": [_round(200.0, [], worker=0.5, ps=1.0), _round(200.0, [], worker=0.5, ps=1.0)],
    }
    assert frame_paths.row(4096, 20, rounds) == {
        "frame_bytes": 4096,
        "steps": 20,
        "ms_per_step": {
            "grpc": {"median": 15.0, "min": 10.0, "max": 20.0},
            "shm": {"median": 5.0, "min": 5.0, "max": 5.0},
        },
        "cpu_ms_per_step": {"grpc": 3.0, "shm": 1.5},
        "over_grpc": {"shm": {"median": 0.375, "min": 0.25, "max": 0.5}},
    }


def _frames(single, by_rpc, by_channel):
    return {
        "worker:0": {
            "fused_rpcs": 10,
            "single_rpcs": single,
            "bytes": by_rpc + by_channel,
            "channel_frames": int(by_channel > 0),
            "channel_bytes": by_channel,
        }
    }


@pytest.mark.parametrize(
    ("variant", "right", "wrong"),
    [
        ("grpc", (0, 6400, 0), [(0, 6400, 6400), (0, 640, 0)]),
        ("beside", (160, 0, 0), [(16, 0, 0), (160, 640, 0)]),
        ("shm", (0, 1, 2), [(0, 1, 1), (160, 0, 0)]),
        ("tcp", (0, 1, 2), [(0, 1, 1), (160, 0, 0)]),
    ],
)
def test_frames_took_the_way_of_the_variant(variant, right, wrong):
    frame_paths.check_path(variant, 640, 16, _frames(*right))
    for counts in wrong:
        with pytest.raises(frame_paths.WrongPathError) as caught:
            frame_paths.check_path(variant, 640, 16, _frames(*counts))
        assert str(caught.value).startswith(f"variant {variant}, frames of 640 bytes: ")


def test_cost_against_the_other_groupings():
    rounds = {
        "stock": [_round(5.0, []), _round(5.0, [])],
        "level": [_round(10.0, []), _round(9.0, [])],
        "cost": [_round(8.0, []), _round(9.0, [])],
        "local": [_round(50.0, []), _round(50.0, [])],
    }
    assert fuse_recv.comparison_of_groupings(rounds) == {
        "cost_vs": {
            "stock": {"median": (5 / 8 + 5 / 9) / 2, "min": 5 / 9, "max": 5 / 8},
            "level": {"median": (10 / 8 + 1) / 2, "min": 1.0, "max": 10 / 8},
        }
    }
    del rounds["cost"]
    assert fuse_recv.comparison_of_groupings(rounds) == {}


def test_losses_of_every_grouping_are_compared():
    modes = {
        "stock": _numbers(1.0, 1.0, [1.0, 2.0]),
        "level": _numbers(1.0, 1.0, [1.0, 2.0]),
        "cost": _numbers(1.0, 1.0, [1.0, 2.5]),
        "local": _numbers(1.0, 0.0, [1.0, 2.0]),
    }
    assert fuse_recv.comparison_of_losses(modes, True) == {
        "max_loss_difference": {"level": 0.0, "cost": 0.5, "local": 0.0},
        "losses_equal": False,
    }
    modes["cost"] = modes["level"]
    assert fuse_recv.comparison_of_losses(modes, True)["losses_equal"] is True
