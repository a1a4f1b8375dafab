# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/layout: the command line, and numbers that can be computed without measuring."""

from __future__ import annotations

import json
from pathlib import Path

from rich.progress import Progress

from benchmarks.layout import relayout as layout_relayout
from benchmarks.layout import run as layout
from benchmarks.layout import steps as layout_steps
from benchmarks.layout import wire as layout_wire

_DOCS = Path(__file__).resolve().parents[4] / "docs"
DOCS, BENCHMARKS = _DOCS / "layout.md", _DOCS / "benchmarks.md"


def test_the_table_of_relayouts_in_the_docs(tmp_path, monkeypatch):
    """The command, on the two smaller meshes; and on all of them its numbers in the docs."""
    rows = layout_relayout.measure(Progress(disable=True))
    marked = BENCHMARKS.read_text().partition("<!-- relayouts -->")[2]
    documented = marked.partition("<!-- /relayouts -->")[0]
    table = [line.split("|")[2:-1] for line in documented.splitlines() if line.startswith("|")][2:]
    assert [[cell.strip() for cell in line] for line in table] == [
        [
            f"{row[f'{way}_over_optimum']:.3f} ({row[f'worst_{way}']:.2f}; "
            f"{row[f'worse_pairs_{way}']})"
            for row in rows
        ]
        for way in layout_relayout.WAYS
    ]
    assert [row["wrong_default"] for row in rows] == [0, 0, 36]
    assert [row["pairs"] for row in rows] == [42, 42, 1122]
    monkeypatch.setattr(layout_relayout, "measure", lambda progress: rows)
    path, picture = tmp_path / "new" / "numbers.json", tmp_path / "new" / "picture.svg"
    arguments = ["--parts", "relayout", "--json", str(path), "--plot", str(picture)]
    assert layout.main(arguments) == 0
    assert json.loads(path.read_text()) == {"relayout": rows}
    assert picture.read_text().startswith("<?xml")


def test_the_examples_in_the_docs(capsys):
    """What they print, and what their comments say."""
    blocks = [part.partition("```")[0] for part in DOCS.read_text().split("```python\n")[1:]]
    names: dict = {}
    for block in blocks[:3]:  # The others need devices.
        exec(block, names)
    picture, _, plan = capsys.readouterr().out.partition("[64/rows, 512] sum over")
    assert "\n".join(line.rstrip() for line in picture.splitlines()) in DOCS.read_text()
    comment = "".join(line[1:] for line in blocks[2].splitlines() if line.startswith("#"))
    assert ("[64/rows, 512] sum over" + plan).split() == comment.replace(":  ", ": ").split()
    assert names["layouts"]["h"].slice_shape == (32, 128)
    assert names["layouts"]["h"].bytes_per_device(4) == 16384
    assert names["layout"].to_mindspore(names["one"]).tensor_map == (1, -1)


# What comes after the rows is not a part of them: TensorFlow's threads log as long as they run.
_RANK = """
import json, os, sys
if sys.argv[2] == "0":
    open(sys.argv[1], "w").write(json.dumps([{"name": "all-gather"}]))
    sys.stdin.read()
print("I0000 00:00:1795404584.468615 9191 a thread that ends late", flush=True)
print("and on the other stream", file=sys.stderr, flush=True)
"""
_START = """
import sys
from benchmarks.layout import wire_relayouts
status = wire_relayouts.start({program!r})
print("a line after all of it", flush=True)
sys.exit(status)
"""


def test_rows_are_told_from_what_is_logged(tmp_path, monkeypatch, isolated_env):
    rank, start = tmp_path / "rank.py", tmp_path / "start.py"
    rank.write_text(_RANK)
    start.write_text(_START.format(program=str(rank)))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[4]))
    assert layout_wire._rows(start) == [{"name": "all-gather"}]
    monkeypatch.setattr(layout_steps, "__file__", str(rank))
    rank.write_text(_RANK.replace('sys.argv[2] == "0"', "True").replace("sys.stdin.read()", ""))
    assert layout_steps.measure(Progress()) == [{"name": "all-gather"}]


def test_a_rank_that_fails_is_an_error(tmp_path, monkeypatch, capsys):
    program = tmp_path / "rank.py"
    program.write_text("import sys; sys.exit('rank 1 ended with 3')")
    monkeypatch.setattr(layout_wire, "_PROGRAMS", {"relayouts": program})
    assert layout.main(["--parts", "wire"]) == 1
    assert capsys.readouterr().err == "error: rank 1 ended with 3\n"
