# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page takes what each of the project's benchmarks writes, as far as it compares ways to run.

The numbers of rows are made by the benchmarks' own functions.
"""

import json

import pytest

from benchmarks.collectives import results as collectives
from benchmarks.common.rank_group import Measurement
from benchmarks.fuse_recv import frame_paths, large_tensors, network
from benchmarks.fuse_recv import results as fuse_recv
from benchmarks.layout import steps
from benchmarks.parameter_server import run as parameter_server
from benchmarks.shard_update import results as shard_update
from benchmarks.shard_update.modes import Round
from examples import compare
from tf_fuse.report.gains import gains_in
from tf_fuse.report.json_form import ReportError
from tf_fuse.report.records.model import Gain, Measured


def _round(rate, rpcs=None, cpu=(("worker", 2.0), ("ps", 1.0))):
    return {
        "steps_per_s": rate,
        "recv_rpcs_per_step": rpcs,
        "cpu_ms_per_step": dict(cpu),
        "losses": [1.0],
    }


def _read(tmp_path, data, name="bench"):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(data))
    return gains_in(path)


def test_fused_receives(tmp_path):
    rounds = {"fused": [_round(40.0, 6.0)], "stock": [_round(10.0, 900.0)]}
    data = {
        "workload": "features",
        "settings": {"features": 300, "workers": 1, "ps": 2},
        "modes": {mode: fuse_recv.mode_numbers(mode, of) for mode, of in rounds.items()},
    }
    ways = (Measured("stock", 10.0, 900.0, None, 3.0), Measured("fused", 40.0, 6.0, None, 3.0))
    assert _read(tmp_path, data) == [Gain("features, 300 features, 1 workers, 2 ps", ways)]


def test_fused_receives_over_several_links(tmp_path):
    links = [network.Condition(0.0), network.Condition(5.0)]
    rounds = {"stock": [_round(10.0)], "fused": [_round(40.0)]}
    data = {
        "workload": "features",
        "settings": {"features": 300},
        "recv_rpcs_per_step": {"stock": 900.0, "fused": 6.0},
        "conditions": [network._numbers(link, [1.0], rounds) for link in links],
    }
    ways = (Measured("stock", 10.0, 900.0, None, 3.0), Measured("fused", 40.0, 6.0, None, 3.0))
    assert _read(tmp_path, data) == [
        Gain(f"features, 300 features, {link.name}", ways) for link in links
    ]


def test_frames_and_tensors_by_size(tmp_path):
    rounds = {"shm": [_round(100.0)], "grpc": [_round(50.0)]}
    rows = [frame_paths.row(size, 7, rounds) for size in (1024, 65536)]
    data = {"settings": {"tensors": 8, "variants": ["shm", "grpc"]}, "sizes": rows}
    ways = (Measured("shm", 100.0, None, None, 3.0), Measured("grpc", 50.0, None, None, 3.0))
    assert _read(tmp_path, data, "paths") == [
        Gain("paths, 8 tensors, 1,024 bytes in a frame", ways),
        Gain("paths, 8 tensors, 65,536 bytes in a frame", ways),
    ]
    row = large_tensors.row(4096, 7, {"packed": [_round(100.0)], "beside": [_round(50.0)]})
    (gain,) = _read(tmp_path, {"settings": {"tensors": 8}, "sizes": [row]})
    assert gain.title == "bench, 8 tensors, 4,096 bytes in a tensor"
    assert [(one.name, one.steps_per_s) for one in gain.ways] == [("packed", 100), ("beside", 50)]


def test_collectives(tmp_path):
    rounds = {
        "tf_fuse": [Measurement(2, 0.004, 40, 0.002, {})],
        "stock": [Measurement(2, 0.008, 80, 0.006, {})],
    }
    row = collectives.row("all_reduce", 4, 4096, rounds)
    ways = (Measured("stock", 250.0, None, 40.0, 3.0), Measured("tf_fuse", 500.0, None, 20.0, 1.0))
    assert _read(tmp_path, {"settings": {"ranks": [4]}, "rows": [row]}) == [
        Gain("bench, all_reduce, 4 ranks, 4,096 bytes; a step is a call", ways)
    ]


def test_sharded_updates(tmp_path):
    def entry(seconds):
        one = Round(Measurement(2, seconds, 80, 0.1, {}), Measurement(2, 0.001, 0, 0.1, {}))
        replica = {"optimizer_state_bytes": 1, "peak_rss_bytes": 1, "losses": [(1.0).hex()]}
        return shard_update.entry([one], [replica])

    data = {
        "model": "mlp",
        "optimizer": "adam",
        "replicas": 2,
        "modes": {"sharded": entry(0.1), "stock": entry(0.2)},
    }
    ways = (Measured("stock", 10.0, None, 40.0), Measured("sharded", 20.0, None, 40.0))
    assert _read(tmp_path, data) == [Gain("mlp, adam, 2 replicas", ways)]


def test_updates_on_servers(tmp_path):
    rounds = [{**_round(8.0), "steps": 10, "server_cpu_s": {"ps:0": 0.3, "ps:1": 0.1}}]
    data = {"model": "mlp", "modes": {"stock": parameter_server.mode_numbers(rounds, {}, {}, 2)}}
    (gain,) = _read(tmp_path, data)
    assert (gain.title, gain.ways[0].steps_per_s) == ("mlp", 8.0)


def test_fit_of_keras(tmp_path):
    spread = {"ms_per_step": compare.spread([5.0]), "cpu_ms_per_step": compare.spread([1.0])}
    assert _read(tmp_path, {"variants": {"fit": spread}}, "fit") == [
        Gain("fit", (Measured("fit", 200.0, None, None, 1.0),))
    ]


def test_recording(tmp_path):
    times = {"recorded": compare.spread([5.0]), "not recorded": compare.spread([4.0])}
    data = {"settings": {"features": 300}, "ms_per_step": times, "ratio": compare.spread([1.25])}
    assert _read(tmp_path, data, "record") == [
        Gain("record, 300 features", (Measured("not recorded", 250.0), Measured("recorded", 200.0)))
    ]


def test_layouts_of_steps(tmp_path):
    rows = [
        {"model": model, "layout": layout, "ms": {"median": ms, "min": ms}, "received_bytes": 64}
        for model, layout, ms in (
            ("mlp", steps.FOUND, 4.0), ("mlp", steps.DATA, 8.0), ("transformer", steps.FOUND, 2.0)
        )
    ]  # fmt: skip
    assert _read(tmp_path, {"step": rows, "search": [{"model": "mlp", "ms": 3.0}]}, "layout") == [
        Gain(
            "layout, mlp",
            (Measured("data-parallel", 125.0, None, 64.0), Measured("found", 250.0, None, 64.0)),
        ),
        Gain("layout, transformer", (Measured("found", 500.0, None, 64.0),)),
    ]


@pytest.mark.parametrize(
    "data",
    [
        {"search": [{"model": "mlp", "ms": 3.0}]},
        {"wire": [{"name": "a", "predicted_bytes": 3}]},
        {"ms_per_step": {"median": 3.0}},
        {"modes": {}},
        {"rows": [3, {"ms": 4.0}], "sizes": {"a": 1}},
        [1],
    ],
)
def test_what_compares_no_ways_to_run_is_not_taken(tmp_path, data):
    with pytest.raises(ReportError, match="neither a report nor the JSON of a benchmark"):
        _read(tmp_path, data)
