# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of benchmarks/collectives.py: rows, tables, and which path was taken."""

import io
import json

import pytest
from rich.console import Console

from benchmarks import collective_numbers as numbers
from benchmarks import collectives, output, rank_group
from benchmarks.rank_group import Measurement, RankError, Variant


def _measured(ms, wire=100, cpu_ms=1.0, calls=2, **counters):
    return Measurement(calls, calls * ms / 1e3, calls * wire, calls * cpu_ms / 1e3, counters)


def _rounds():
    ours = {"collective_bytes_shm": 30, "collective_bytes_grpc": 10, "collective_copied_bytes": 60}
    return {
        "stock": [_measured(8, 200, 3), _measured(4, 100, 5), _measured(6, 210, 4)],
        "tf_fuse": [_measured(2, 0, 1, **ours), _measured(2, 0, 1, **ours), _measured(1, 0, 1)],
        "gloo": [_measured(1), _measured(3), _measured(2)],
    }


def test_row():
    row = numbers.row("all_reduce", 4, 4096, _rounds())
    approx = pytest.approx
    assert {key: row[key] for key in ("op", "ranks", "bytes", "rounds", "calls")} == {
        "op": "all_reduce", "ranks": 4, "bytes": 4096, "rounds": 3, "calls": 2
    }  # fmt: skip
    assert row["ms"] == {
        "stock": approx({"median": 6, "min": 4, "max": 8}),
        "tf_fuse": approx({"median": 2, "min": 1, "max": 2}),
        "gloo": approx({"median": 2, "min": 1, "max": 3}),
    }
    assert row["wire_bytes"] == {"stock": 200, "tf_fuse": 0, "gloo": 100}
    assert row["cpu_ms"] == approx({"stock": 4, "tf_fuse": 1, "gloo": 1})
    # 60 + 20 bytes in two of three rounds of two calls, and 120 copied.
    assert row["path_bytes"] == {"tf_fuse": approx({"shm": 10, "grpc": 20 / 6})}
    assert row["copies_per_byte"] == approx({"tf_fuse": 1.5})
    # By round, not of medians.
    assert row["ratio"] == {
        "stock/tf_fuse": approx({"median": 4, "min": 2, "max": 6}),
        "gloo/tf_fuse": approx({"median": 1.5, "min": 0.5, "max": 2}),
        "stock/gloo": approx({"median": 3, "min": 4 / 3, "max": 8}),
    }
    json.dumps(row)


def test_row_without_gloo_and_without_counters():
    rounds = {"stock": [_measured(8)], "tf_fuse[grpc]": [_measured(2)]}
    row = numbers.row("rs_ag", 2, 4096, rounds)
    assert list(row["ms"]) == ["stock", "tf_fuse[grpc]"]
    assert list(row["ratio"]) == ["stock/tf_fuse[grpc]"]
    assert (row["path_bytes"], row["copies_per_byte"]) == ({}, {})


def test_nothing_moved_has_no_copies_per_byte():
    counters = {"collective_bytes_grpc": 0, "collective_copied_bytes": 0}
    row = numbers.row("all_reduce", 2, 4, {"tf_fuse": [_measured(1, **counters)]})
    assert (row["path_bytes"], row["copies_per_byte"]) == ({"tf_fuse": {"grpc": 0}}, {})


def test_halves_over_all_reduce():
    rounds = {
        "all_reduce": {"tf_fuse": [_measured(2), _measured(4)]},
        "rs_ag": {"tf_fuse": [_measured(3), _measured(4)], "gloo": [_measured(1), _measured(1)]},
    }
    assert numbers.over_all_reduce(rounds, "rs_ag") == {
        "tf_fuse": pytest.approx({"median": 1.25, "min": 1, "max": 1.5})
    }
    assert numbers.over_all_reduce({"rs_ag": rounds["rs_ag"]}, "rs_ag") == {}


def test_rows_leave_out_what_no_variant_has():
    rounds = {"all_reduce": {"stock": [_measured(2)]}, "reduce_scatter": {}}
    (row,) = collectives._rows(2, 4096, rounds)
    assert (row["op"], row["bytes"]) == ("all_reduce", 4096)


def _result():
    rows = [
        numbers.row("all_reduce", ranks, size, _rounds()) for ranks in (2, 4) for size in (8, 4096)
    ]
    return {"settings": {"rounds": 3}, "rows": rows}


def _table(result):
    console = Console(file=io.StringIO(), width=output.FILE_WIDTH)
    console.print(numbers.render(result))
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_table():
    lines = _table(_result())
    assert len(lines) == 4 * 3
    assert lines[0] == [
        "all_reduce", "2", "8B", "stock", "6.000 (4.000 to 8.000)", "", "0.000", "4.00", ""
    ]  # fmt: skip
    assert lines[1][3:] == [
        "tf_fuse", "2.000 (1.000 to 2.000)", "4.00 (2.00 to 6.00)", "0.000", "1.00", "1.50"
    ]  # fmt: skip
    assert lines[-1][:4] == ["", "", "", "gloo"]


def test_table_without_copies():
    result = {**_result(), "rows": [numbers.row("rs_ag", 2, 8, {"stock": [_measured(6)]})]}
    assert _table(result) == [
        ["rs_ag", "2", "8B", "stock", "6.000 (6.000 to 6.000)", "", "0.000", "1.00"]
    ]


def test_table_between_hosts_has_the_paths():
    link = {"emulator": "veth", "name": "0 ms, 1000 Mbit/s"}
    rows = [numbers.row("all_reduce", 4, 8, _rounds())]
    lines = _table({**_result(), "rows": rows, "link": link})
    # In place of the copies.
    assert [line[-1] for line in lines] == ["", "shm, grpc", ""]
    assert len(lines[0]) == 9


def test_names_in_brackets_are_no_markup():
    rows = [numbers.row("rs_ag", 2, 8, {"tf_fuse[grpc]": [_measured(6)]})]
    assert _table({**_result(), "rows": rows})[0][3] == "tf_fuse[grpc]"


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "times.png"
    numbers.plot(_result(), path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("path", "counters", "fine"),
    [
        (None, {"collective_bytes_shm": 5, "collective_bytes_grpc": 5}, True),
        ("grpc", {}, True),  # a library that does not count
        ("grpc", {"collective_bytes_shm": 0, "collective_bytes_grpc": 5}, True),
        ("grpc", {"collective_bytes_shm": 1, "collective_bytes_grpc": 5}, False),
        ("grpc", {"collective_bytes_shm": 0, "collective_bytes_grpc": 0}, False),
    ],
)
def test_forced_path(path, counters, fine):
    variant, measurement = Variant("tf_fuse[x]", path=path), _measured(1, **counters)
    if fine:
        collectives.check_path(variant, measurement)
        return
    shm, grpc = counters.values()
    text = (
        rf"variant tf_fuse\[x\]: bytes by data path are {{'shm': {shm}, 'grpc': {grpc}}}, expected "
        "some by grpc and none by another"
    )
    with pytest.raises(collectives.WrongPathError, match=text):
        collectives.check_path(variant, measurement)


@pytest.mark.parametrize(
    ("counters", "apart", "fine"),
    [
        ({"collective_bytes_shm": 0, "collective_bytes_grpc": 5}, True, True),
        ({"collective_bytes_shm": 1, "collective_bytes_grpc": 5}, True, False),
        ({"collective_bytes_shm": 1, "collective_bytes_grpc": 5}, False, True),
        ({}, True, True),
    ],
)
def test_hosts_apart_share_no_memory(counters, apart, fine):
    variant, measurement = Variant("tf_fuse"), _measured(1, **counters)
    if fine:
        collectives.check_path(variant, measurement, apart)
        return
    text = r"are {'shm': 1, 'grpc': 5}, expected none by shm: each rank has a host of its own"
    with pytest.raises(collectives.WrongPathError, match=text):
        collectives.check_path(variant, measurement, apart)


def test_bytes_of_stock_are_another_way():
    counters = {"collective_bytes_grpc": 5, "collective_bytes_stock": 1}
    with pytest.raises(collectives.WrongPathError, match=r"are {'grpc': 5, 'stock': 1}, expected"):
        collectives.check_path(Variant("x", path="grpc"), _measured(1, **counters))


def test_neighbours_share_a_host():
    two = rank_group.Network(["a", "b"], [["in", "a"], ["in", "b"]], "link")
    assert [two.host(rank, 4) for rank in range(4)] == [0, 0, 1, 1]
    assert [two.host(rank, 3) for rank in range(3)] == [0, 0, 1]
    assert [two.host(rank, 2) for rank in range(2)] == [0, 1]
    assert [rank_group.LOOPBACK.host(rank, 3) for rank in range(3)] == [0, 0, 0]


def test_counter_of_the_interface():
    text = (
        "Inter-|   Receive                    |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
        "  eth0: 11 1 0 0 0 0 0 0 12 1 0 0 0 0 0 0\n"
        "    lo: 7001 9 0 0 0 0 0 0 7002 9 0 0 0 0 0 0\n"
    )
    assert rank_group.wire_bytes("lo", text) == 7002  # what one sends, another receives
    assert rank_group.wire_bytes("eth0", text) == 11 + 12
    with pytest.raises(RankError, match="/proc/net/dev has no interface lo"):
        rank_group.wire_bytes("lo", text.replace("  lo:", " lo0:"))
