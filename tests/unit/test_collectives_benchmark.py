# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/collectives.py without TensorFlow: sizes, numbers, refusals, and ranks that fail."""

import io
import json
import signal
import sys

import pytest
from rich.console import Console

from benchmarks import collective_numbers as numbers
from benchmarks import collective_rank, collectives, rank_group
from benchmarks.rank_group import Measurement, RankError, RankGroup, Variant

# --- Sizes and the command line ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4KB", 4096),
        ("4kib", 4096),
        ("64MB", 64 << 20),
        ("1GiB", 1 << 30),
        ("40004B", 40004),
        ("8", 8),
    ],
)
def test_sizes(text, size):
    assert numbers.parse_size(text) == size


@pytest.mark.parametrize("size", [4, 4096, 40004, 1 << 20, 3 << 30])
def test_names_of_sizes_are_exact(size):
    assert numbers.parse_size(numbers.size_name(size)) == size


def test_names_of_sizes():
    assert [numbers.size_name(n) for n in (1000, 65536, 16 << 20)] == ["1000B", "64KB", "16MB"]


def test_calls_fall_with_the_size():
    assert [collectives.calls_per_round(n) for n in (4, 1 << 20, 16 << 20, 64 << 20, 1 << 30)] == [
        100, 100, 8, 2, 2
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--op broadcast", "--op takes all_reduce, reduce_scatter, all_gather, rs_ag; got 'broad"),
        ("--ranks 2,1", "--ranks takes whole numbers of at least 2, got '1'"),
        ("--ranks two", "--ranks takes whole numbers of at least 2, got 'two'"),
        ("--ranks ,", "--ranks names nothing"),
        ("--sizes 4XB", "--sizes: no size: '4XB'; expected a number and one of B, KB, MB, GB"),
        ("--sizes MB", "--sizes: no size: 'MB'"),
        ("--sizes 1.5MB", "--sizes: no size: '1.5MB'"),
        ("--sizes=-4KB", "--sizes: no size: '-4KB'"),
        ("--sizes 0KB", "--sizes: '0KB' is 0 bytes; expected a positive multiple of 4 (float32)"),
        ("--sizes 4KB,6B", "--sizes: '6B' is 6 bytes; expected a positive multiple of 4"),
        ("--variants stock,nccl", "--variants takes stock, tf_fuse, gloo; got 'nccl'"),
        ("--paths udp", "--paths takes shm, tcp, grpc; got 'udp'"),
        ("--rounds 0", "--rounds must be at least 1, got 0"),
        ("--calls -1", "--calls must be at least 1, got -1"),
        ("--timeout nan", "--timeout must be at least 1, got nan"),
        ("--large-rounds 0", "--large-rounds must be at least 1, got 0"),
        ("--hosts 3", "argument --hosts: invalid choice"),
        ("--mbit 10", "--mbit 10 is of no use on loopback: give --hosts 2"),
        ("--delay-ms 1", "--delay-ms 1 is of no use on loopback: give --hosts 2"),
        ("--emulator veth", "--emulator veth is of no use on loopback: give --hosts 2"),
        ("--hosts 2 --mbit -1", "--mbit must be at least 0 and finite, got -1"),
        ("--hosts 2 --delay-ms nan", "--delay-ms must be at least 0 and finite, got nan"),
        ("--hosts 2 --delay-ms 1 --emulator veth", "--delay-ms 1: the emulator veth cannot delay"),
        ("--variants stock --gloo-python p", "--gloo-python p is of no use: --variants lacks gloo"),
    ],
)
def test_wrong_flags(arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        collectives.parse(arguments.split())
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_lists_by_spaces_and_commas():
    args = collectives.parse(["--ranks", "2,4", "8", "2", "--sizes", "4KB,", "1MB"])
    assert (args.ranks, args.sizes) == ([2, 4, 8], [4096, 1 << 20])
    assert args.op == ["all_reduce"]
    assert collectives.parse([]).sizes == [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def test_a_variant_of_ours_for_each_path(monkeypatch):
    monkeypatch.setenv("TF_FUSE_COLLECTIVE_PATHS", "tcp")
    args = collectives.parse(["--paths", "shm,grpc"])
    args.gloo_python = "python-with-torch"
    made = collectives.variants(args)
    assert [(v.name, v.backend, v.protocol, v.python) for v in made] == [
        ("stock", "tensorflow", "grpc", sys.executable),
        ("tf_fuse", "tensorflow", "grpc+fuse", sys.executable),
        ("tf_fuse[grpc]", "tensorflow", "grpc+fuse", sys.executable),
        ("gloo", "gloo", "grpc", "python-with-torch"),
    ]
    # What the user's shell has set does not hide behind the names.
    found = [v.env().get("TF_FUSE_COLLECTIVE_PATHS") for v in made]
    assert found == [None, None, "grpc", None]


@pytest.mark.parametrize(
    ("arguments", "paths", "emulator"),
    [
        ("", ["shm"], None),
        ("--hosts 2", ["grpc", "tcp"], "veth"),
        ("--hosts 2 --mbit 10 --paths shm", ["shm"], "veth"),
        # What can delay is chosen by what the kernel has.
        ("--hosts 2 --delay-ms 1", ["grpc", "tcp"], None),
        ("--hosts 2 --emulator relay", ["grpc", "tcp"], "relay"),
    ],
)
def test_what_is_between_hosts(arguments, paths, emulator):
    args = collectives.parse(arguments.split())
    assert (args.paths, args.emulator) == (paths, emulator)


def test_rounds_of_large_sizes():
    args = collectives.parse(["--rounds", "5", "--large-rounds", "2"])
    rounds = [collectives.rounds_of(args, size << 20) for size in (64, 255, 256, 1024)]
    assert rounds == [5, 5, 2, 2]
    assert collectives.rounds_of(collectives.parse(["--rounds", "5"]), 1 << 30) == 5


def test_memory_grows_with_all_that_hold_tensors():
    # Two ranks: 2.5 tensors in each of three variants, and three more in the one that runs.
    assert collectives.memory_needed(1 << 20, 2, 3, 1) == 2 * 10.5 * (1 << 20)
    assert collectives.memory_needed(1 << 20, 2, 3, 4) == 2 * 15 * (1 << 20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_is_enough(number):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    cleaned = []
    with pytest.raises(KeyboardInterrupt), collectives.interrupted_once():
        try:
            signal.raise_signal(number)
        finally:
            # The next ones do not stop the cleaning.
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(number)
    assert cleaned == [number]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


# --- Where gloo is missing -----------------------------------------------------------------------


def _interpreter(folder, script):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_gloo_is_left_out_where_pytorch_is_missing(monkeypatch, tmp_path):
    script = "echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1"
    python = _interpreter(tmp_path, script)
    monkeypatch.setattr(sys, "executable", python)
    args, out = collectives.parse([]), io.StringIO()
    assert collectives.settle_gloo(args, Console(file=out, width=300)) is None
    assert args.variants == ["stock", "tf_fuse"]
    expected = f"left out: gloo, {python}: ModuleNotFoundError: No module named 'torch'\n"
    assert out.getvalue() == expected


def test_gloo_is_kept_where_pytorch_is(tmp_path):
    python = _interpreter(tmp_path, "exit 0")
    args = collectives.parse(["--gloo-python", python])
    assert collectives.settle_gloo(args, Console()) is None
    assert args.variants == ["stock", "tf_fuse", "gloo"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'ImportError: libcudnn.so.9' >&2; exit 1", "{python}: ImportError: libcudnn.so.9"),
        ("exit 3", "{python}: ended with status 3"),
        (None, "{python} cannot be run: [Errno 2]"),
    ],
)
def test_an_interpreter_that_was_named_must_have_gloo(script, text, tmp_path, capsys):
    python = _interpreter(tmp_path, script) if script else str(tmp_path / "none")
    assert collectives.main(["--gloo-python", python]) == 2
    assert f"error: --gloo-python: no gloo in {text.format(python=python)}" in (
        capsys.readouterr().err
    )


# --- Numbers -------------------------------------------------------------------------------------


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
    console = Console(file=io.StringIO(), width=collectives._FILE_WIDTH)
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


# --- The rank's side -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "ranks", "ends"),
    [
        (1024, 2, [528, 1024]),  # 512 is a multiple of 16, and gets 16 more in full
        (1000, 2, [512, 1000]),
        (1024, 8, [144, 288, 432, 576, 720, 864, 1008, 1024]),
        (17, 3, [16, 17, 17]),  # the last is empty
        (1, 4, [1, 1, 1, 1]),
    ],
)
def test_chunks_of_the_ring(elements, ranks, ends):
    chunks = [collective_rank.ring_chunk(elements, ranks, rank) for rank in range(ranks)]
    assert chunks == list(zip([0, *ends[:-1]], ends, strict=True))


def test_equal_chunks_hold_all():
    assert [collective_rank.equal_chunk(n, 3) for n in (1, 3, 4, 10001)] == [1, 1, 2, 3334]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_sum_is_that_of_the_contributions(ranks):
    for index in (0, 7, collective_rank.PERIOD - 1, collective_rank.PERIOD + 3):
        base = index % collective_rank.PERIOD
        parts = [base + collective_rank.offset(1, rank) for rank in range(ranks)]
        assert len(set(parts)) == ranks
        assert sum(parts) == base * ranks + collective_rank.offset(ranks, 0)
        assert sum(parts) < 1 << 24  # exact in float32, in any order


class _Backend:
    """Counts its calls; has no all_gather."""

    def __init__(self):
        self.log = []

    def prepare(self, op, elements):
        if op == "all_gather":
            raise collective_rank.UnsupportedError("no all_gather here")
        self.log.append((op, elements))

    def call(self, op):
        return lambda: self.log.append(op)

    def release(self):
        self.log.append("release")

    def counters(self):
        return {"collective_copied_bytes": 10 * self.log.count("rs_ag")}


def test_commands_of_a_rank():
    backend = _Backend()
    rank = collective_rank.Rank(backend)
    prepare = {"do": "prepare", "ops": ["rs_ag", "all_gather"], "bytes": 4096}
    assert rank.serve(prepare) == {
        "event": "prepared", "unsupported": {"all_gather": "no all_gather here"}
    }  # fmt: skip
    assert backend.log == ["release", ("rs_ag", 1024), "rs_ag", "rs_ag"]  # two to warm up
    assert rank.serve({"do": "arm", "op": "rs_ag", "calls": 3}) == {"event": "armed"}
    timed = rank.serve({"do": "go", "at": 0.0})
    assert (timed["event"], backend.log.count("rs_ag")) == ("timed", 5)
    assert timed["seconds"] >= 0
    usage = rank.serve({"do": "usage"})
    assert (usage["event"], usage["counters"]) == ("usage", {"collective_copied_bytes": 30})
    assert usage["cpu_s"] >= 0
    assert rank.serve({"do": "release"}) == {"event": "released"}
    assert backend.log.count("release") == 2
    with pytest.raises(ValueError, match=r"unknown command {'do': 'stop'}; expected prepare, re"):
        rank.serve({"do": "stop"})


# --- The caller's side, with ranks that play a part ----------------------------------------------

_ACTOR = """
import json, os, sys

spec = json.loads(sys.argv[1])
part = json.loads(os.environ["PART"]).get(str(spec["rank"]), {})
attempt = int(spec["store"].rpartition("-")[2])

def emit(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)

print("the last words", file=sys.stderr, flush=True)
if attempt <= part.get("port_taken", 0):
    emit("error", kind="PortTakenError", text="PortTakenError: 127.0.0.1:1 is taken")
    sys.exit(1)
emit("ready", attempt=attempt)
answers = {
    "prepare": {"event": "prepared", "unsupported": {}},
    "release": {"event": "released"},
    "arm": {"event": "armed"},
    "go": {"event": "timed", "seconds": 0.5 + spec["rank"]},
    "usage": {"event": "usage", "cpu_s": 0.25, "counters": {"collective_copied_bytes": 8}},
}
for line in sys.stdin:
    do = json.loads(line)["do"]
    if do == part.get("end_at"):
        sys.exit(7)
    if do == part.get("silent_at"):
        continue
    if do == part.get("fail_at"):
        emit("error", kind="WrongValueError", text="WrongValueError: rank 1: 2 of 4 are wrong")
        sys.exit(1)
    emit(**answers[do])
"""


@pytest.fixture
def actors(monkeypatch, tmp_path):
    """Starts groups of two whose rank programs play the given parts."""
    script = tmp_path / "actor.py"
    script.write_text(_ACTOR)
    monkeypatch.setattr(rank_group, "_RANK_PROGRAM", script)
    groups = []

    def start(**part_of_rank_1):
        monkeypatch.setenv("PART", json.dumps({"1": part_of_rank_1}))
        groups.append(RankGroup(Variant("stock"), 2, 60.0))
        return groups[-1]

    yield start
    for group in groups:
        group.close()


def test_a_measurement_is_that_of_all_ranks(actors):
    with actors() as group:
        group.wait_ready()
        assert group.prepare(["all_reduce"], 4096) == {}
        measurement = group.measure("all_reduce", 5)
        processes = list(group._processes)
    assert measurement.calls == 5
    assert measurement.seconds == 1.5  # the slowest
    assert measurement.cpu_s == 0.5
    assert measurement.counters == {"collective_copied_bytes": 16}
    assert measurement.wire_bytes >= 0
    # Each ended by itself when its stdin was closed.
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"fail_at": "prepare"}, "WrongValueError: rank 1: 2 of 4 are wrong"),
        ({"end_at": "prepare"}, "the process ended with status 7"),
        ({"silent_at": "prepare"}, r"no answer 'prepared' of ranks \[1\] in 1 s"),
    ],
)
def test_a_rank_that_fails_is_named(actors, part, text):
    group = actors(**part)
    group.wait_ready()
    if "silent_at" in part:
        group._timeout_s = 1.0  # the start may take longer
    text = rf"^variant stock, rank 1 of 2: {text}\nThe end of its output:\nthe last words$"
    with pytest.raises(RankError, match=text):
        group.prepare(["all_reduce"], 4096)


def test_a_port_that_was_taken_is_not_the_end(actors):
    group = actors(port_taken=2)
    group.wait_ready()
    assert group._attempts == 3
    assert group.prepare(["all_reduce"], 4096) == {}


def test_ports_that_are_always_taken_are(actors):
    with pytest.raises(RankError, match=r"rank 1 of 2: PortTakenError: 127.0.0.1:1 is taken"):
        actors(port_taken=99).wait_ready()


def test_the_command_reports_a_failed_rank(actors, monkeypatch, capsys):
    monkeypatch.setenv("PART", json.dumps({"1": {"fail_at": "prepare"}}))
    assert collectives.main(["--ranks", "2", "--variants", "stock"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: variant stock, rank 1 of 2: WrongValueError: rank 1: 2 of 4")
    assert "Traceback" not in error


def test_a_size_that_memory_does_not_hold_is_left_out(actors, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PART", "{}")
    free = type("Memory", (), {"available": 3 << 30, "total": 4 << 30})
    monkeypatch.setattr(collectives.psutil, "virtual_memory", lambda: free)
    out = tmp_path / "out.json"
    command = "--ranks 2 --sizes 4KB,1GB --variants stock --rounds 1 --json"
    assert collectives.main([*command.split(), str(out)]) == 0
    assert [row["bytes"] for row in json.loads(out.read_text())["rows"]] == [4096]
    text = "left out: 2 ranks, 1GB: about 11.0 GiB of memory are needed, and 3.0 are available"
    assert text in capsys.readouterr().out


def test_ranks_start_by_the_command_of_their_host(actors, monkeypatch, tmp_path):
    monkeypatch.setenv("PART", "{}")
    log = tmp_path / "log"
    commands = [["sh", "-c", f'echo {name} >> {log}; exec "$@"', "sh"] for name in "ab"]
    network = rank_group.Network(["10.0.0.1", "10.0.0.2"], commands, "lo")
    with RankGroup(Variant("stock"), 2, 60.0, network) as group:
        group.wait_ready()
        assert group.apart
        assert group.prepare(["all_reduce"], 4096) == {}
    assert sorted(log.read_text().split()) == ["a", "b"]


def test_the_command_writes_rows(actors, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PART", "{}")
    out, picture = tmp_path / "new" / "out.json", tmp_path / "new" / "out.svg"
    command = "--op all_reduce rs_ag --ranks 2 --sizes 4KB,1MB --variants stock,tf_fuse --rounds 3"
    options = ["--json", str(out), "--plot", str(picture)]
    assert collectives.main([*command.split(), *options]) == 0
    result = json.loads(out.read_text())
    assert [(row["op"], row["ranks"], row["bytes"], row["calls"]) for row in result["rows"]] == [
        ("all_reduce", 2, 4096, 100),
        ("rs_ag", 2, 4096, 100),
        ("all_reduce", 2, 1 << 20, 100),
        ("rs_ag", 2, 1 << 20, 100),
    ]
    for row in result["rows"]:
        assert row["ms"] == {
            name: {"median": 15.0, "min": 15.0, "max": 15.0} for name in ("stock", "tf_fuse")
        }
        assert row["cpu_ms"] == {"stock": 5.0, "tf_fuse": 5.0}
        assert set(row["wire_bytes"]) == {"stock", "tf_fuse"}
        assert row["ratio"] == {"stock/tf_fuse": {"median": 1.0, "min": 1.0, "max": 1.0}}
        assert ("over_all_reduce" in row) == (row["op"] == "rs_ag")
    assert set(result) == {"settings", "machine", "rows"}
    assert picture.stat().st_size > 0
    assert "Collectives on loopback, 3 rounds" in capsys.readouterr().out
