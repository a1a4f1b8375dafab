# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reader of Criteo's click logs: a label, 13 integer and 26 categorical columns.

Tab-separated without a header (the Kaggle and terabyte files) or comma-separated, with or without a
header (the samples in circulation; some write integers as `3.0`). A missing value is empty. The
separator is that of the first line; comma-separated fields may be in quotes.

A header is a first line whose first field is a name and no number. Columns are taken by their
place. So a header that has names of the data set's own (label or click, I1 to I13, C1 to C26) must
have them in their places; other names may be any.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator

from examples.wide_deep.data.common import DataError, Row, numbered_lines, parse_integer

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = ("label", *NUMERIC, *CATEGORICAL)

_LABELS = ("label", "click")
_FEATURES = tuple(column.lower() for column in COLUMNS[1:])


def read(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Rows of a Criteo file, in order; plain or gzip.

    Args:
      path: the file.

    Yields:
      Rows with 13 numeric and 26 categorical values.

    Raises:
      DataError: the file is missing or has no rows; a row has another number of columns, an
        integer or a label that is none; a header has names twice or out of place. The text has file
        and line, what was expected and what was found.
    """
    rows = 0
    first = True
    separator = ","
    for line, text in numbered_lines(path):
        if first:
            first = False
            separator = "\t" if "\t" in text else ","
            names = [_name(field) for field in _split(path, line, text, separator)]
            if _is_name(names[0]):
                _check_width(path, line, names, separator)
                _check_header(path, line, names)
                continue
        fields = _split(path, line, text, separator)
        _check_width(path, line, fields, separator)
        if fields[0] not in ("0", "1"):
            raise DataError(path, line, f"expected the label 0 or 1, found {fields[0]!r}")
        numeric = tuple(
            parse_integer(path, line, column, field, point_zero=True) if field else None
            for column, field in zip(NUMERIC, fields[1:14], strict=True)
        )
        rows += 1
        yield Row(int(fields[0]), numeric, tuple(fields[14:]))
    if not rows:
        raise DataError(path, None, "expected rows in Criteo's format, found none")


def _split(path: str | os.PathLike[str], line: int, text: str, separator: str) -> list[str]:
    # The csv module is several times slower, and few files have quotes.
    if separator == "\t" or '"' not in text:
        return text.split(separator)
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as e:
        raise DataError(path, line, f"expected fields in closed quotes, found: {e}") from e


def _name(field: str) -> str:
    return field.strip().strip('"').strip()


def _is_name(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return bool(text)
    return False


def _check_header(path: str | os.PathLike[str], line: int, names: list[str]) -> None:
    first_at: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        if not _is_name(name):  # more likely a row with a bad label
            raise DataError(
                path,
                line,
                f"expected the label 0 or 1, or a header of names; found {names[0]!r} in column 1 "
                f"and {name!r} in column {number}",
            )
        before = first_at.setdefault(name.lower(), number)
        if before != number:
            raise DataError(
                path,
                line,
                f"header columns {before} and {number}: expected different names, found {name!r} "
                "twice",
            )
    label, *features = (name.lower() for name in names)
    if label not in _FEATURES and {*_LABELS, *_FEATURES}.isdisjoint(features):
        return  # names of the file's own: whether they are in order cannot be told
    # Samples call the label what they like; in a feature's place there must be that feature.
    expected = ["label or click" if label in _FEATURES else names[0], *COLUMNS[1:]]
    for number, (name, column) in enumerate(zip(names, expected, strict=True), start=1):
        if name.lower() != column.lower():
            raise DataError(
                path,
                line,
                f"header column {number}: expected {column}, found {name!r}; the columns are label "
                "or click, I1 to I13, C1 to C26, in this order",
            )


def _check_width(
    path: str | os.PathLike[str], line: int, fields: list[str], separator: str
) -> None:
    if len(fields) != len(COLUMNS):
        kind = "tab" if separator == "\t" else "comma"
        raise DataError(
            path,
            line,
            f"expected {len(COLUMNS)} {kind}-separated columns (label, 13 integer, 26 "
            f"categorical), found {len(fields)}",
        )
