# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a page of a report: one file, which needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tf_fuse.report.json_form import as_json
from tf_fuse.report.records.model import Report

_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("d3.js", "core.js", "step.js", "timeline.js", "tables.js", "main.js")


def page(report: Report, title: str = "What tf_fuse does here") -> str:
    """Return the page of a report, as HTML.

    Args:
      report: to show.
      title: of the page.

    Raises:
      ImportError: Jinja2 is not installed; the text says how to install it.
    """
    try:
        import jinja2
    except ImportError:
        raise ImportError(
            'the page of a report needs Jinja2: python -m pip install "tf_fuse[report]"'
        ) from None
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    data = as_json(report)
    return environment.get_template("page.html.j2").render(
        title=title,
        # (Not the report itself: its texts may have paths.)
        report={key: data[key] for key in ("tf_fuse", "tensorflow", "made", "notes")},
        parts=_parts(report),
        style=Markup((_ASSETS / "style.css").read_text(encoding="utf-8")),
        script=Markup("\n".join((_ASSETS / one).read_text(encoding="utf-8") for one in _SCRIPTS)),
        data=Markup(_in_script(data)),
    )


def write(report: Report, path: Path) -> None:
    """Write a report as a page, and its JSON beside it.

    Args:
      report: to write.
      path: of the page; the JSON has the same name with the ending ".json".

    Raises:
      ImportError: Jinja2 is not installed.
      OSError: a file cannot be written.
      ValueError: the path ends in ".json", which is the name of the other file.
    """
    if path.suffix == ".json":
        raise ValueError(
            f"{path}: the page needs another name, as report.html; the JSON is beside it"
        )
    text = page(report)
    path.write_text(text, encoding="utf-8")
    path.with_suffix(".json").write_text(
        json.dumps(as_json(report), indent=1) + "\n", encoding="utf-8"
    )


def _parts(report: Report) -> list[tuple[str, str]]:
    """Return id and title of each part that has something to show."""
    # (A process without a cluster has counted nothing.)
    has_tasks = len(report.tasks) > 1 or any(
        one.error or any(one.counters.values()) for one in report.tasks
    )
    parts = []
    if report.functions or has_tasks:
        parts.append(("step", "The step"))
    if report.timeline or report.functions or has_tasks:
        parts.append(("timeline", "Timeline"))
    if has_tasks:
        parts.append(("tasks", "Tasks"))
    if report.weight_updates or report.placements or report.server_updates:
        parts.append(("updates", "Updates"))
    if report.layouts:
        parts.append(("layouts", "Layouts"))
    if report.gains:
        parts.append(("gains", "What is gained"))
    return parts or [("step", "The step")]


def _in_script(data: Any) -> str:
    """Return JSON whose texts neither open nor end an element of the page."""
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
