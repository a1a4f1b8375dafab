# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/layout.py: the command line, and numbers that can be computed without measuring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks import layout, layout_relayout, layout_steps, layout_wire

DOCS = Path(__file__).resolve().parents[2] / "docs" / "layout.md"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--parts", "relayout,speed"], "--parts takes relayout, wire, search, step, got speed"),
        (["--parts", ","], "--parts takes relayout, wire, search, step, got nothing"),
        (["--parts", "wire", "--plot", "x.png"], "--plot draws the part relayout, which --parts"),
    ],
)
def test_what_the_command_line_refuses(arguments, text, capsys):
    with pytest.raises(SystemExit):
        layout.parse(arguments)
    assert text in capsys.readouterr().err


def test_the_table_of_relayouts_in_the_docs(tmp_path, capsys, monkeypatch):
    """The command, on the two smaller meshes; and on all of them its numbers in the docs."""
    rows = layout_relayout.measure(Progress(disable=True))
    documented = DOCS.read_text().partition("<!-- numbers -->")[2].partition("<!-- /numbers -->")[0]
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
    assert "1122 pairs" in capsys.readouterr().out


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


def test_the_table_of_bytes_on_the_wire():
    row = {"name": "all-gather", "plan": ["all_gather over x, dimension 0", "slice over y"]}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(layout_wire.render([row | {"predicted_bytes": 2000, "measured_bytes": 2010}]))
    lines = [line for line in capture.get().splitlines() if line.startswith("\u2502")]
    assert [[cell.strip() for cell in line.split("\u2502")[1:-1]] for line in lines] == [
        ["all-gather", "all_gather over x", "2,000", "2,010", "1.0050"],
        ["", "slice over y", "", "", ""],
    ]


def test_a_rank_that_fails_is_an_error(tmp_path, monkeypatch, capsys):
    program = tmp_path / "rank.py"
    program.write_text("import sys; sys.exit('rank 1 ended with 3')")
    monkeypatch.setattr(layout_wire, "_PROGRAMS", {"relayouts": program})
    assert layout.main(["--parts", "wire"]) == 1
    assert capsys.readouterr().err == "error: rank 1 ended with 3\n"


def test_the_table_of_times():
    """Over the best of the layouts that are made by hand, which data-parallel is one of."""
    rows = [
        {"model": "m", "layout": name, "ms": {"median": ms}, "received_bytes": 1000 * int(ms)}
        for name, ms in ((layout_steps.DATA, 4.0), ("hidden:x", 2.0), (layout_steps.FOUND, 2.5))
    ]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(layout_steps.render(rows))
    lines = [line for line in capture.get().splitlines() if line.startswith("\u2502")]
    assert [[cell.strip() for cell in line.split("\u2502")[1:-1]] for line in lines] == [
        ["m", "data-parallel", "4.00", "2.00", "4,000"],
        ["m", "hidden:x", "2.00", "1.00", "2,000"],
        ["m", "found", "2.50", "1.25", "2,000"],
    ]
