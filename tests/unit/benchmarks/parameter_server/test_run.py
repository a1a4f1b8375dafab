# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of the benchmark of updates on servers; no process is started."""

import pytest

from benchmarks.parameter_server import run as ps_update

_SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"


def _round(rate, cpu):
    used = sum(cpu.values())
    return {
        "steps": 10,
        "steps_per_s": rate,
        "recv_rpcs_per_step": 4.0,
        "cpu_ms_per_step": {"ps": used * 100.0, "worker": 1.0},
        "server_cpu_s": cpu,
        "losses": [rate],
    }


def test_numbers_of_a_mode():
    rounds = [_round(2.0, {"ps:0": 0.3, "ps:1": 0.1}), _round(4.0, {"ps:0": 0.5, "ps:1": 0.1})]
    placed = {"/job:chief/replica:0/task:0/device:CPU:0": 99, _SERVER.format(1): 30}
    updating = {"ps:0": 3.0, "ps:1": 2.0}
    assert ps_update.mode_numbers(rounds, placed, updating, 2) == {
        "steps_per_s": {"median": 3.0, "min": 2.0, "max": 4.0},
        "server_cpu_ms_per_step": pytest.approx(50.0),
        "server_cpu_ms_by_server": {"ps:0": pytest.approx(40.0), "ps:1": pytest.approx(10.0)},
        # All on one of two servers: the other one counts.
        "imbalance_bytes": 2.0,
        "update_ms_by_server": updating,
        "imbalance_update_ms": pytest.approx(1.2),
        "imbalance_cpu": pytest.approx(1.6),
        "bytes_by_device": placed,
        "cpu_ms_per_step": {"ps": pytest.approx(50.0), "worker": 1.0},
        "recv_rpcs_per_step": 4.0,
        "losses": [2.0, 4.0],
        "final_loss": 3.0,
    }


def test_updates_that_are_not_counted():
    numbers = ps_update.mode_numbers([_round(2.0, {"ps:0": 0.3, "ps:1": 0.1})], {}, {}, 2)
    assert numbers["imbalance_update_ms"] == numbers["imbalance_cpu"] == pytest.approx(1.5)


def test_time_of_updates():
    def counted(**variables):
        return {"server_updates": {"workers": {}, "variables": {
            name: {"updates": updates, "update_us": us, "waits": 0, "wait_us": 0, "max_wait_us": 0}
            for name, (updates, us) in variables.items()
        }}}  # fmt: skip

    tasks = {
        "/job:ps/replica:0/task:0": counted(w=(4, 3000), step=(4, 1000)),
        "/job:ps/replica:0/task:1": counted(b=(2, 1000)),
        "/job:worker/replica:0/task:0": counted(),
    }
    assert ps_update.update_ms(tasks) == {"ps:0": 1.0, "ps:1": 0.25}
    assert ps_update.update_ms({}) == {}


def test_imbalance():
    assert ps_update.imbalance([], 3) == 1.0
    assert ps_update.imbalance([0, 0], 2) == 1.0
    assert ps_update.imbalance([5, 5, 5], 3) == 1.0
    assert ps_update.imbalance([9], 3) == 3.0


def test_ratios_are_of_each_round():
    rounds = {
        "stock": [_round(2.0, {"ps:0": 0.4}), _round(4.0, {"ps:0": 0.2})],
        "all": [_round(6.0, {"ps:0": 0.1}), _round(8.0, {"ps:0": 0.1})],
    }
    assert ps_update.ratios(rounds, dict.fromkeys(rounds)) == {
        "stock": {
            "steps_per_s": {"median": 2.5, "min": 2.0, "max": 3.0},
            "server_cpu": {
                "median": pytest.approx(0.375),
                "min": pytest.approx(0.25),
                "max": pytest.approx(0.5),
            },
        }
    }
    assert ps_update.ratios({"stock": rounds["stock"]}, {"stock": {}}) == {}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--workers 0", "--workers must be at least 1, got 0"),
        ("--learning-rate -1", "--learning-rate must be positive, got -1.0"),
        ("--learning-rate nan", "--learning-rate must be positive, got nan"),
        ("--model mlp", "invalid choice: 'mlp'"),
    ],
)
def test_wrong_flags(flags, text, capsys):
    with pytest.raises(SystemExit):
        ps_update.parse(flags.split())
    assert text in capsys.readouterr().err
