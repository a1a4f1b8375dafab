# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reader of Criteo's click logs: a label, 13 integer and 26 categorical columns.

Tab-separated without a header (the Kaggle and terabyte files) or comma-separated, with or without a
header (the samples in circulation; some write integers as `3.0`). A missing value is empty. The
separator is that of the first line; a header is a first line whose first field is `label`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from examples.wide_deep.data.common import DataError, Row, numbered_lines, parse_number

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = ("label", *NUMERIC, *CATEGORICAL)


def read(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Rows of a Criteo file, in order; plain or gzip.

    Args:
      path: the file.

    Yields:
      Rows with 13 numeric and 26 categorical values.

    Raises:
      DataError: the file is missing or has no rows; a row has another number of columns, a number
        or a label that is none. The text has file and line, what was expected and what was found.
    """
    rows = 0
    first = True
    separator = ","
    for line, text in numbered_lines(path):
        if first:
            first = False
            separator = "\t" if "\t" in text else ","
            if text.split(separator)[0].strip().lower() == "label":
                _check_width(path, line, text.split(separator), separator)
                continue
        fields = text.split(separator)
        _check_width(path, line, fields, separator)
        if fields[0] not in ("0", "1"):
            raise DataError(path, line, f"expected the label 0 or 1, found {fields[0]!r}")
        numeric = tuple(
            parse_number(path, line, column, field) if field else None
            for column, field in zip(NUMERIC, fields[1:14], strict=True)
        )
        rows += 1
        yield Row(int(fields[0]), numeric, tuple(fields[14:]))
    if not rows:
        raise DataError(path, None, "expected rows in Criteo's format, found none")


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
