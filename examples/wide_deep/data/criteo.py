# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reader of Criteo's click logs: a label, 13 integer and 26 categorical columns.

Tab-separated without a header (the Kaggle and terabyte files) or comma-separated, with or without a
header (the samples in circulation; some write integers as `3.0`). A missing value is empty. The
separator is that of the first line. A header begins with "label" or "click" and then has I1 to I13
and C1 to C26.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from examples.wide_deep.data.common import DataError, Row, numbered_lines, parse_integer

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = ("label", *NUMERIC, *CATEGORICAL)

_LABELS = ("label", "click")


def read(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Rows of a Criteo file, in order; plain or gzip.

    Args:
      path: the file.

    Yields:
      Rows with 13 numeric and 26 categorical values.

    Raises:
      DataError: the file is missing or has no rows; a row has another number of columns, or a
        malformed integer or label; a header has other names. The text has file and line, what was
        expected and what was found.
    """
    rows = 0
    first = True
    separator = ","
    for line, text in numbered_lines(path):
        if first:
            first = False
            separator = "\t" if "\t" in text else ","
            names = text.split(separator)
            if names[0] in _LABELS:
                _check_width(path, line, names, separator)
                _check_header(path, line, names)
                continue
        fields = text.split(separator)
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


def _check_header(path: str | os.PathLike[str], line: int, names: list[str]) -> None:
    for number, (name, column) in enumerate(zip(names[1:], COLUMNS[1:], strict=True), start=2):
        if name != column:
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
