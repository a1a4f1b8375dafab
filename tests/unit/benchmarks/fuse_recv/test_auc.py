# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/fuse_recv/auc.py makes of its scores, and what the modes of its folder are."""

import pytest

from benchmarks.fuse_recv import auc, network, run


def _scores(*pairs):
    return [{"float32": {"auc": a}, "bfloat16": {"auc": b}} for a, b in pairs]


def test_means_and_deviations_of_variants_and_of_their_differences():
    result = auc.summarize(_scores((0.5, 0.75), (0.75, 0.75)))
    assert result == {
        "float32": {"mean": 0.625, "deviation": pytest.approx(0.1767767)},
        "bfloat16": {"mean": 0.75, "deviation": 0.0},
        "difference": {"mean": 0.125, "deviation": pytest.approx(0.1767767)},
    }


def test_one_seed_has_no_deviation():
    assert auc.summarize(_scores((0.5, 0.25)))["difference"] == {"mean": -0.25, "deviation": 0.0}


def test_numbers_below_one_are_an_error(capsys):
    with pytest.raises(SystemExit):
        auc.parse(["--seeds", "0"])
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err


def test_the_network_compares_modes_with_stock():
    args = network.parse(["--modes", "fused", "compressed"])
    assert args.modes == ["stock", "fused", "compressed"]
    assert network.parse([]).modes == ["stock", "fused"]
    assert network.parse(["--grouping", "level,cost"]).modes == ["stock", "level", "cost"]
    assert run.variant(args, "compressed") == {
        "mode": "fused",
        "fuse_options": {"compress": "bfloat16"},
    }
