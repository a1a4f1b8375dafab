# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic behind the tables: no process is started here."""

import math

import pytest

from benchmarks.fuse_recv import frame_paths, large_tensors
from benchmarks.fuse_recv import run as fuse_recv
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


def test_ratios():
    modes = {
        "stock": _numbers(10.0, 200.0),
        "fused": _numbers(40.0, 2.0),
        "local": _numbers(60.0, 0.0),
    }
    assert compare.ratios(modes) == {"speedup": 4.0, "rpc_reduction": 0.99, "vs_local": 1.5}


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


def test_losses_of_what_does_not_keep_all_bits_are_not_compared():
    modes = {name: _numbers(1.0, 1.0, [1.0]) for name in ("stock", "fused", "local")}
    modes |= {
        name: _numbers(1.0, 1.0, [2.0])
        for name in ("compressed", "in_flight_4", "per_call_4", "unique")
    }
    assert fuse_recv.comparison_of_losses(modes, in_order=True) == {
        "max_loss_difference": {"fused": 0.0, "local": 0.0},
        "losses_equal": True,
    }


def test_speedup_by_round_pairs_the_rounds():
    rounds = {
        "stock": [_round(rate, [], worker=4.0, ps=4.0) for rate in (10.0, 20.0, 5.0)],
        "fused": [_round(rate, [], worker=1.0, ps=3.0) for rate in (20.0, 30.0, 20.0)],
    }
    assert fuse_recv.comparison_of_rounds(rounds) == {
        "speedup_by_round": {"median": 2.0, "min": 1.5, "max": 4.0},
        "cpu_by_round": {"median": 0.5, "min": 0.5, "max": 0.5},
    }


@pytest.mark.parametrize(
    ("count", "expected"),
    [(5, None), (6, (0.0, 5.0)), (9, (1.0, 7.0)), (60, (21.0, 38.0))],
)
def test_the_interval_of_a_median_is_of_the_binomial_distribution(count, expected):
    """Tables of the sign test's interval have ranks 1 and 6, 2 and 8, 22 and 39."""
    values = [float(i) for i in reversed(range(count))]
    assert compare.interval_of_median(values) == expected


def test_many_rounds_have_intervals():
    rounds = {
        "stock": [_round(10.0, [], worker=4.0) for _ in range(6)],
        "fused": [_round(rate, [], worker=1.0) for rate in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)],
    }
    found = fuse_recv.comparison_of_rounds(rounds)
    assert found["speedup_by_round"]["interval"] == (1.0, 6.0)
    assert found["cpu_by_round"]["interval"] == (0.25, 0.25)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"level": [1.0], "cost": [1.0], "local": [2.0]}, True),
        ({"level": [1.0], "cost": [2.0]}, False),
        ({"stock": [1.0], "level": [1.0], "cost": [2.0]}, False),
        ({"stock": [1.0], "local": [2.0]}, None),
    ],
)
def test_losses_of_all_clusters_must_be_equal(losses, expected):
    modes = {mode: _numbers(1.0, 1.0, values) for mode, values in losses.items()}
    assert fuse_recv.comparison_of_losses(modes, in_order=True).get("losses_equal") is expected


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


def _result(losses_equal=True):
    def mode(rate, rpcs, worker, ps):
        return {
            "steps_per_s": {"median": rate, "min": rate - 1, "max": rate + 2},
            "recv_rpcs_per_step": rpcs,
            "cpu_ms_per_step": {"worker": worker, "ps": ps},
            "losses": [1.0, 0.5],
        }

    return {
        "workload": "features",
        "settings": {
            "features": 3,
            "workers": 1,
            "ps": 2,
            "batch": 64,
            "steps": 60,
            "rounds": 5,
            "seed": 1,
        },
        "modes": {"stock": mode(10.0, 905.0, 70.0, 80.0), "fused": mode(40.0, 10.0, 11.0, 15.0)},
        "speedup": 4.0,
        "speedup_by_round": {"median": 4.0, "min": 3.5, "max": 4.5},
        "cpu_by_round": {"median": 0.5, "min": 0.4, "max": 0.6},
        "rpc_reduction": 1 - 10 / 905,
        "losses_equal": losses_equal,
        "max_loss_difference": {"fused": 0.0 if losses_equal else 0.25},
    }


def test_unequal_losses_fail_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fuse_recv, "measure", lambda *_: _result(losses_equal=False))
    out = tmp_path / "new" / "out.json"
    assert fuse_recv.main(["--json", str(out)]) == 1
    assert capsys.readouterr().err == "error: the losses of stock and fused differ\n"
    assert out.exists()  # the evidence is kept
    monkeypatch.setattr(fuse_recv, "measure", lambda *_: _result())
    assert fuse_recv.main([]) == 0


def test_each_number_of_steps_per_call_is_a_mode(capsys):
    args = fuse_recv.parse(["--workload", "adult", "--steps-per-call", "4,10"])
    assert args.modes[-2:] == ["per_call_4", "per_call_10"]
    assert fuse_recv.variant(args, "per_call_10") == {"mode": "fused", "steps_per_call": 10}
    for wrong in ("0", "7", "30"):  # 30 is more than a mode's first steps
        with pytest.raises(SystemExit):
            fuse_recv.parse(["--workload", "adult", "--steps-per-call", wrong])
    assert "must divide" in capsys.readouterr().err
