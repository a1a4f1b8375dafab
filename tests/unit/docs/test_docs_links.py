# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Links of the pages lead somewhere, every page is in the index, and the programs named exist."""

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_PAGES = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")])


def _prose(page):
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def _anchors(page):
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def _links(page):
    """Path and anchor of each link to a file of the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def test_links_lead_to_files_and_headings():
    wrong = [
        f"{page.relative_to(_ROOT)}: {path.relative_to(_ROOT)}#{anchor}"
        for page in _PAGES
        for path, anchor in _links(page)
        if not path.exists() or (anchor and anchor not in _anchors(path))
    ]
    assert wrong == []


def test_the_index_has_every_page():
    index = _ROOT / "docs" / "index.md"
    linked = {path for path, _ in _links(index)}
    assert set((_ROOT / "docs").glob("*.md")) - linked == {index}


def test_programs_that_are_named_exist():
    text = "".join(page.read_text(encoding="utf-8") for page in _PAGES)
    files = set(re.findall(r"python ((?:benchmarks|examples|tests)/[\w/]+\.py)", text))
    modules = set(re.findall(r"python -m ((?:benchmarks|examples)[\w.]*)", text))
    assert "benchmarks/" in " ".join(files)
    paths = files | {module.replace(".", "/") + ".py" for module in modules}
    assert sorted(path for path in paths if not (_ROOT / path).is_file()) == []


def test_each_table_has_a_header():
    """A blank line within a table would show the rows below it as text."""
    wrong = [
        f"{page.relative_to(_ROOT)}: {part.splitlines()[0]}"
        for page in _PAGES
        for part in re.split(r"\n\s*\n", _prose(page))
        if part.startswith("|") and not re.match(r".*\n\|[ :|-]+\|(\n|$)", part)
    ]
    assert wrong == []
