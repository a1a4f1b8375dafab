# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/shard_update without TensorFlow: the command line, numbers and what is left out."""

import io
import json
import mmap

import numpy as np
import pytest
from rich.console import Console

from benchmarks.collectives import rank as collective_rank
from benchmarks.common.rank_group import Measurement
from benchmarks.shard_update import models
from benchmarks.shard_update import rank as shard_update_rank
from benchmarks.shard_update import results as numbers
from benchmarks.shard_update import run as shard_update
from benchmarks.shard_update.modes import MODES, Round, options_of

# --- What is trained -----------------------------------------------------------------------------


def test_sizes_by_hand():
    width, words = 512, 8192
    block = 4 * (width * width + width) + 2 * 2 * width + 2 * 4 * width * width + 5 * width
    count = words * width + 2 * block + 2 * width + width * words + words
    assert models.parameter_count("transformer", models.SIZES["transformer"]) == count
    tables = (34623 + 6686) * (64 + 128)
    dense = 256 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + 128 + 1
    assert models.parameter_count("ncf", models.SIZES["ncf"]) == tables + dense


@pytest.mark.parametrize("model", models.MODELS)
def test_all_ranks_begin_alike_with_other_batches(model):
    sizes = dict(models.SIZES[model], width=16)
    values = models.first_values(model, sizes)
    weights = models.weights(model, sizes)
    assert [value.shape for value in values] == [tuple(weight.shape) for weight in weights]
    for one, other in zip(values, models.first_values(model, sizes), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == np.float32
    # No kernel is that of another layer.
    kernels = [v for v, weight in zip(values, weights, strict=True) if weight.scale]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels)
    assert min(kernel.std() for kernel in kernels) > 0.01
    batches = [models.batches(model, sizes, rank) for rank in (0, 0, 1)]
    assert len(batches[0]) == models.BATCHES
    for first, again, other in zip(*batches, strict=True):
        for part, same, another in zip(first, again, other, strict=True):
            np.testing.assert_array_equal(part, same)
            assert (part != another).any()


# --- Numbers -------------------------------------------------------------------------------------


def _round(step_s, gradients_s, wire=0, shm=0):
    counters = {"collective_bytes_shm": shm, "collective_bytes_grpc": 7}
    return Round(
        Measurement(4, step_s, wire, 0.0, counters), Measurement(4, gradients_s, 99, 0.0, counters)
    )


def _replica(losses, state=10, peak=100, estimate=None):
    return {
        "losses": [loss.hex() for loss in losses],
        "optimizer_state_bytes": state,
        "peak_rss_bytes": peak,
        "estimate": estimate,
    }


def test_numbers_of_a_mode():
    rounds = [_round(4.0, 2.0, 400, 40), _round(8.0, 4.0, 800), _round(6.0, 2.8, 0, 4)]
    finished = [_replica([1.0, 2.0], 10, 300), _replica([3.0, 5.0], 20, 200)]
    assert numbers.entry(rounds, finished) == {
        "step_ms": {"median": 1500.0, "min": 1000.0, "max": 2000.0},
        "update_ms": pytest.approx(800.0),
        "collective_bytes_per_step": 110.0,
        "optimizer_state_bytes": 20,
        "peak_rss_bytes": 300,
        "losses": [2.0, 3.5],
    }


def test_ratios_are_by_round():
    rounds = {
        "stock": [_round(4.0, 1.0), _round(8.0, 1.0)],
        "ddp": [_round(1.0, 1.0), _round(4.0, 1.0)],
    }
    assert numbers.ratios(rounds) == {"stock/ddp": {"median": 3.0, "min": 2.0, "max": 4.0}}
    assert numbers.ratios({"ddp": rounds["ddp"]}) == {}


def test_what_was_expected_is_beside_what_was_measured():
    estimate = {"sharded_ms": 12.25, "left_ms": 0.0, "costs": {"share_us": 200.0}}
    rounds = {
        "unsharded": [_round(4.0, 1.0), _round(8.0, 1.0)],
        "unsharded_fused": [_round(3.0, 1.0), _round(7.0, 1.0)],
        "sharded": [_round(2.0, 1.0), _round(8.0, 1.0)],
        "sharded_unfused": [_round(3.0, 1.0), _round(5.0, 1.0)],
        "sharded_compiled": [_round(3.0, 1.0), _round(5.0, 1.0)],
    }
    finished = {name: [_replica([], estimate=estimate)] * 2 for name in rounds if "un" not in name}
    finished["sharded_unfused"] = finished["sharded"]
    finished["unsharded"] = finished["unsharded_fused"] = [_replica([])]
    found = numbers.estimates(rounds, finished)
    # Each over the mode that fuses alike; the compiled one has none.
    assert found == {
        "sharded": {
            **estimate,
            "whole": "unsharded_fused",
            "measured_ms": {"median": 0.0, "min": -250.0, "max": 250.0},
        },
        "sharded_unfused": {
            **estimate,
            "whole": "unsharded",
            "measured_ms": {"median": 500.0, "min": 250.0, "max": 750.0},
        },
        "sharded_compiled": {**estimate, "whole": "", "measured_ms": None},
    }


def test_estimates_of_a_report():
    def bucket(sharded, saved, cost):
        return {"sharded": sharded, "profit": {"saved_s": saved, "cost_s": cost}}

    costs = {"share_us": 200.0}
    functions = [
        {"costs": None, "buckets": []},
        {"costs": costs, "buckets": [{"sharded": False, "profit": None}, bucket(True, 0.5, 0.25)]},
        {"costs": costs, "buckets": [bucket(False, 0.25, 0.5), bucket(True, 1.0, 0.5)]},
    ]
    estimate = shard_update_rank.estimate
    assert estimate({"functions": functions}) == {
        "sharded_ms": 750.0, "left_ms": -250.0, "costs": costs
    }  # fmt: skip
    assert estimate({"functions": functions[:1]}) is None
    assert estimate(None) is None


def test_losses_are_compared_bit_by_bit_and_by_replica():
    last = float(np.nextafter(np.float32(2), np.float32(3)))
    found = numbers.compared(
        {
            "stock": [_replica([1.0, 2.0, 3.0]), _replica([4.0, 5.0, 6.0])],
            "unsharded": [_replica([1.0, 2.0, 3.0]), _replica([4.0, 5.0, 6.0])],
            # Their means would be equal.
            "sharded": [_replica([1.0, last, 4.0]), _replica([4.0, 5.0, 5.0])],
            "ddp": [_replica([7.0, 7.0, 7.0]), _replica([7.0, 7.0, 7.0])],
        }
    )
    assert found == {
        "unsharded": {"equal": True, "first_step": None, "largest_difference": 0.0},
        "sharded": {"equal": False, "first_step": 1, "largest_difference": 1.0},
    }


def test_a_nan_in_both_is_no_difference():
    nan = float("nan")
    found = numbers.compared({"stock": [_replica([nan])], "sharded": [_replica([nan])]})
    assert found["sharded"]["equal"]


def _result(modes):
    args = shard_update.parse(["--modes", ",".join(modes)])
    finished = {name: [_replica([losses])] for name, losses in modes.items()}
    rounds = {name: [_round(4.0, 2.0)] for name in modes}
    return args, {
        "model": "mlp",
        "optimizer": "adam",
        "replicas": 2,
        "modes": {name: numbers.entry(rounds[name], finished[name]) for name in modes},
        "ratio": numbers.ratios(rounds),
        "losses_compared": numbers.compared(finished),
        "estimates": numbers.estimates(rounds, finished),
        "settings": {"rounds": 1, "steps": 4, "parameters": 100},
    }


@pytest.mark.parametrize(
    ("modes", "status"),
    [
        ({"stock": 1.0, "unsharded": 1.0, "ddp": 2.0}, 0),
        ({"stock": 1.0, "unsharded": 2.0}, 1),
        ({"stock": 1.0, "sharded": 2.0}, 1),
        ({"stock": 1.0, "sharded_compiled": 2.0}, 0),  # it promises no bits
    ],
)
def test_status_tells_of_other_losses(modes, status, tmp_path):
    args, result = _result(modes)
    args.json = tmp_path / "new" / "out.json"
    assert shard_update.report(result, args, Console(file=io.StringIO())) == status
    assert json.loads(args.json.read_text()) == result


# --- The replica's side --------------------------------------------------------------------------


class _Trainer:
    def __init__(self):
        self.log = []

    def build(self):
        self.log.append("build")

    def step(self, at):
        self.log.append(("step", at))
        return at / 4

    def gradients(self, at):
        self.log.append(("gradients", at))

    def loss(self, result):
        return result

    def state_bytes(self):
        return 24

    def report(self):
        return None

    def counters(self):
        return {"collective_bytes_shm": 10 * len(self.log)}


def test_commands_of_a_replica():
    trainer = _Trainer()
    replica = shard_update_rank.Replica(lambda: trainer)
    assert replica.serve({"do": "prepare", "warm_up": 2}) == {
        "event": "prepared", "unsupported": None
    }  # fmt: skip
    steps = [("step", 0), ("step", 1)]
    assert trainer.log == ["build", *steps, ("gradients", 0), ("gradients", 1)]
    assert replica.serve({"do": "arm", "op": "step", "calls": 3}) == {"event": "armed"}
    assert replica.serve({"do": "go", "at": 0.0})["event"] == "timed"
    assert replica.serve({"do": "usage"})["counters"] == {"collective_bytes_shm": 30}
    done = replica.serve({"do": "finish"})
    # Of all steps, in order.
    assert [float.fromhex(loss) for loss in done["losses"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert done["optimizer_state_bytes"] == 24
    assert done["estimate"] is None
    assert done["peak_rss_bytes"] > 10 << 20


@pytest.mark.parametrize("at_build", [False, True])
def test_what_cannot_be_had_is_reported(at_build):
    def refuse():
        raise collective_rank.UnsupportedError("no option shard_weight_update")

    def make():
        if not at_build:
            refuse()
        trainer = _Trainer()
        trainer.build = refuse
        return trainer

    assert shard_update_rank.Replica(make).serve({"do": "prepare", "warm_up": 1}) == {
        "event": "prepared", "unsupported": "no option shard_weight_update"
    }  # fmt: skip


def test_groups_are_of_modes_that_shard():
    grouped = {name for name, mode in MODES.items() if options_of(mode, 2) != options_of(mode, 0)}
    assert grouped == {"sharded", "sharded_first_use", "sharded_unfused", "sharded_compiled"}
    assert options_of(MODES["sharded"], 2) == {
        "shard_weight_update": True,
        "shard_weight_update_group_size": 2,
    }


def test_the_peak_is_that_of_the_time_since_it_was_reset():
    # Pages of its own: malloc may have a free block of that size, and keeps it afterwards.
    with mmap.mmap(-1, 64 << 20) as big:
        big[::4096] = b"x" * (len(big) // 4096)
        held = shard_update_rank.peak_rss_bytes()
    if not shard_update_rank.reset_peak():
        pytest.skip("the system does not let a process reset its peak")
    assert shard_update_rank.peak_rss_bytes() < held - (32 << 20)
