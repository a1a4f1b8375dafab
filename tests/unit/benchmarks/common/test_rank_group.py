# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ranks of benchmarks/collectives without TensorFlow, also such as fail."""

import json

import pytest

from benchmarks.collectives import rank as collective_rank
from benchmarks.collectives import run as collectives
from benchmarks.common import rank_group
from benchmarks.common.rank_group import RankError, RankGroup, Variant

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
        processes = [one.process for one in group._processes]
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


@pytest.mark.parametrize("step", ["cluster_package", "Popen"])
def test_ctrl_c_while_it_starts_is_ctrl_c(actors, monkeypatch, step):
    """Before ports are held, and between the ranks."""
    started = []

    def interrupt(*args, **kwargs):
        if step == "Popen" and not started:
            started.append(popen(*args, **kwargs))
            return started[0]
        raise KeyboardInterrupt

    popen = rank_group.subprocess.Popen
    if step == "Popen":
        monkeypatch.setattr(rank_group.subprocess, "Popen", interrupt)
    else:
        monkeypatch.setattr(rank_group.standalone, "cluster_package", interrupt)
    with pytest.raises(KeyboardInterrupt):
        actors()
    assert [process.returncode for process in started] == [0] * len(started)


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
