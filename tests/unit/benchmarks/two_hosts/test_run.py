# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/two_hosts: command lines of other benchmarks, and rows of what these say."""

import pytest

from benchmarks.collectives import options as collectives
from benchmarks.common.link import Condition
from benchmarks.fuse_recv import network
from benchmarks.parameter_server import run as parameter_server
from benchmarks.shard_update import run as shard_update
from benchmarks.two_hosts import run

_PARSERS = {
    "features": network.parse,
    "all_reduce": collectives.parse,
    "mlp": shard_update.parse,
    **dict.fromkeys(["dense", "wide_deep", "dlrm"], parameter_server.parse),
}
_STOCK, _OURS, _RATIO = ({"median": m, "min": 1.0, "max": 9.0} for m in (4.0, 8.0, 2.0))
_LINK = {"link": {"round_trip_ms": 0.3, "stream_mbit": 950.0}}
_OF_SERVERS = {
    "modes": {"stock": {"steps_per_s": _STOCK}, "all": {"steps_per_s": _OURS}},
    "ratio": {"stock": {"steps_per_s": _RATIO, "server_cpu": None}},
    **_LINK,
}
_FOUND = {
    "features": {
        "conditions": [
            {
                "round_trip_ms": 0.3,
                "modes": {"stock": {"steps_per_s": _STOCK}, "fused": {"steps_per_s": _OURS}},
                "speedup_by_round": {"fused": _RATIO},
            }
        ]
    },
    "all_reduce": {
        "rows": [
            {
                "ms": {"stock": _STOCK, "tf_fuse[tcp]": _OURS},
                "ratio": {"stock/tf_fuse[tcp]": _RATIO},
            }
        ],
        **_LINK,
    },
    "mlp": {
        "modes": {"stock": {"step_ms": _STOCK}, "sharded": {"step_ms": _OURS}},
        "ratio": {"stock/sharded": _RATIO},
        **_LINK,
    },
    **dict.fromkeys(["dense", "wide_deep", "dlrm"], _OF_SERVERS),
}


@pytest.mark.parametrize("work", run.WORKS)
@pytest.mark.parametrize("condition", [Condition(0.1, mbit=1000.0), Condition(1.0), Condition()])
def test_benchmarks_take_the_command_lines(work, condition):
    _, *arguments = run.arguments(work, condition, 3)
    args = _PARSERS[work](arguments)
    assert args.rounds == 3
    if work == "features":
        assert network.conditions(args) == [condition]
    else:
        assert (args.hosts, args.delay_ms, args.mbit) == (2, condition.delay_ms, condition.mbit)


@pytest.mark.parametrize("work", run.WORKS)
def test_rows(work):
    found = run.row(work, _FOUND[work])
    assert (found["stock"], found["tf_fuse"], found["ratio"]) == (_STOCK, _OURS, _RATIO)
    assert found["round_trip_ms"] == 0.3
    assert found["stream_mbit"] == (None if work == "features" else 950.0)


@pytest.mark.parametrize("text", ["1000", "a,1", "1,-1", "inf,1", "1,nan"])
def test_what_is_no_link(text, capsys):
    with pytest.raises(SystemExit):
        run.parse(["--links", text])
    assert f"a link is MBIT,MS, as 1000,0.1; got '{text}'" in capsys.readouterr().err


def test_table_and_plot(tmp_path):
    rows = [
        {"work": work, "link": name, **run.row(work, _FOUND[work])}
        for name in ("0.1 ms", "1 ms")
        for work in run.WORKS
    ]
    result = {"rows": rows, "settings": {"rounds": 3}}
    assert run.render(result).row_count == 2 * len(run.WORKS)
    run.plot(result, tmp_path / "plot.svg")
    assert "1 ms" in (tmp_path / "plot.svg").read_text()
