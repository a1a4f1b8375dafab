# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Renew the tables of docs/internals.md: `python -m tf_fuse._tensorflow.table PAGE`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tf_fuse._tensorflow.catalogue import FILES
from tf_fuse._tensorflow.members import Member

BEGIN: Final = "<!-- members -->"
END: Final = "<!-- /members -->"

_HEAD = "| member | when | why | feature | file |\n|---|---|---|---|---|\n"
_PREFIX = "tensorflow.python."


def tables() -> str:
    """Return a table of members for each list of versions, by file.

    Members that differ in their names share a row.
    """
    found: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for file in FILES:
        name = file.__name__.removeprefix("tf_fuse._tensorflow.").replace(".", "/") + ".py"
        for member in file.MEMBERS:
            rows = found.setdefault(member.versions, {})
            rows.setdefault(_cells(member, name), []).append(_name(member))
    return "\n".join(f"## {versions}\n\n{_table(rows)}" for versions, rows in found.items())


def _table(rows: Mapping[tuple[str, ...], Sequence[str]]) -> str:
    return _HEAD + "".join(
        f"| {', '.join(names)} | {' | '.join(cells)} |\n" for cells, names in rows.items()
    )


def update(text: str) -> str:
    """Return a page with the tables between its marks renewed."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def _name(member: Member) -> str:
    return f"`{str(member).removeprefix(_PREFIX)}`"


def _cells(member: Member, file: str) -> tuple[str, ...]:
    why = member.why[:1].upper() + member.why[1:].rstrip(".") + "."
    return member.when, why, ", ".join(member.features), f"`{file}`"


def main(arguments: Sequence[str]) -> None:
    """Renew the tables of a page."""
    path = Path(arguments[0])
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
