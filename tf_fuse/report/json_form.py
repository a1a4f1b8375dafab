# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write a report as JSON, and read what may be truncated, foreign or of another version."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from pathlib import Path
from typing import Any

from tf_fuse.report.records.model import FORMAT, VERSION, Note, Report
from tf_fuse.report.shapes import fitting

# A larger file is not read: it is foreign, or made to exhaust the memory.
MAX_BYTES = 512 << 20
# Names of tasks and devices begin like paths, addresses have "://", and other names "/" inside.
_PART = r"/(?!(?:job|replica|task|device|host|(?i:[cgtx]pu)):)"
_PATH = re.compile(
    r"file://\S+"
    # (What stands in quotes may have spaces.)
    rf"|(?<=')(?:~[\w.-]*)?{_PART}[^'\s/][^'\n]*(?=')"
    rf'|(?<=")(?:~[\w.-]*)?{_PART}[^"\s/][^"\n]*(?=")'
    rf"|(?<![\w.)\]</-])(?:~[\w.-]*|\.{{1,2}}|(?<!:)/+)?(?:{_PART}[\w.@+~%=#-]+)+/?"
)
# A text that says where something failed may have any length.
_MAX_TEXT = 2000
_MAX_INTEGER = 1 << 64


class ReportError(ValueError):
    """A file is not a report; the text says what it is, and what to do."""


def public(data: Any) -> Any:
    """Return plain data as a page may have it.

    Texts have no paths of files, and what UTF-8 cannot write is replaced; numbers like NaN, and
    integers that no counter reaches, are None.
    """
    if isinstance(data, str):
        text = data[:_MAX_TEXT]
        if not text.isascii():
            text = text.encode(errors="replace").decode()
        return _PATH.sub("(path)", text)
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, int) and not -_MAX_INTEGER < data < _MAX_INTEGER:
        return None
    if isinstance(data, dict):
        return {public(str(key)): public(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [public(one) for one in data]
    return data


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as plain data."""
    data: dict[str, Any] = public(dataclasses.asdict(report))
    return data


def read(path: Path) -> Report:
    """Read a report that `as_json` made, as far as it can be read.

    Args:
      path: of the file.

    Returns:
      The report; its notes say what could not be read.

    Raises:
      ReportError: the file is truncated, or it is not a report.
      OSError: there is no such file, or it may not be read.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ReportError(f"{path.name}: {size:,} bytes; a report has at most {MAX_BYTES:,}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ReportError(
            f"{path.name}: not JSON, or cut off ({error}); write the report again"
        ) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ReportError(f'{path.name}: not a report of tf_fuse: it has no "format": "{FORMAT}"')
    try:
        return from_json(data, path.name)
    except RecursionError:
        raise ReportError(f"{path.name}: not a report of tf_fuse: nested too deep") from None


def from_json(data: dict[str, Any], name: str) -> Report:
    """Return the report that plain data holds; its notes say what could not be read.

    Args:
      data: that `as_json` returned, perhaps in another version.
      name: of its source, for notes.
    """
    problems: list[str] = []
    report: Report = fitting(_built(Report, public(data), "", problems), problems)
    notes = list(report.notes)
    if report.version != VERSION:
        text = f"has version {report.version}, and this is version {VERSION}: parts may be missing"
        notes.append(Note(name, text))
    if problems:
        shown = "; ".join(problems[:3]) + (
            "" if len(problems) < 4 else f"; {len(problems) - 3} more"
        )
        notes.append(Note(name, f"left out what does not fit: {shown}"))
    return dataclasses.replace(report, format=FORMAT, version=VERSION, notes=tuple(notes))


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _built(kind: Any, data: dict[str, Any], where: str, problems: list[str]) -> Any:
    """Return a dataclass of what fits; what is missing has its default."""
    fields = {}
    for name, wanted in _types(kind).items():
        if name in data:
            try:
                fields[name] = _value(wanted, data[name], f"{where}{name}", problems)
            except TypeError as error:
                problems.append(str(error))
    return kind(**fields)


def _value(wanted: Any, data: Any, where: str, problems: list[str]) -> Any:
    """Return data as a type says.

    Raises:
      TypeError: it is of another type.
    """
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else _value(args[0], data, where, problems)
    if dataclasses.is_dataclass(wanted):
        return _built(wanted, _of(dict, data, where), f"{where}.", problems)
    if origin is tuple:
        items = []
        for number, one in enumerate(_of(list, data, where)):
            try:
                items.append(_value(args[0], one, f"{where}[{number}]", problems))
            except TypeError as error:
                problems.append(str(error))
        return tuple(items)
    if origin is dict:
        if args[1] is Any:
            return _of(dict, data, where)
        return {
            key: _value(args[1], one, where, problems)
            for key, one in _of(dict, data, where).items()
        }
    if wanted is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if wanted is int and isinstance(data, bool):
        raise TypeError(f"{where}: expected int, found bool")
    return _of(wanted, data, where)


def _of(wanted: type, data: Any, where: str) -> Any:
    if not isinstance(data, wanted):
        raise TypeError(f"{where}: expected {wanted.__name__}, found {type(data).__name__}")
    return data
