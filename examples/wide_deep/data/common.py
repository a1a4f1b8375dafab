# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the readers share: the row, the error, opening plain and gzipped text, and hashing."""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_GZIP_MAGIC = b"\x1f\x8b"
# Not int() and not float(): they take "1_000", " 1" and the digits of other scripts.
_INTEGER = re.compile("-?[0-9]+")
_INTEGER_OR_POINT_ZERO = re.compile(r"-?[0-9]+(?:\.0)?")


class DataError(ValueError):
    """A data file is missing, empty or malformed.

    Attributes:
      path: the file.
      line: line number from 1, or None when the whole file is meant.
    """

    def __init__(self, path: str | os.PathLike[str], line: int | None, problem: str):
        """Make the text "PATH:LINE: PROBLEM"."""
        self.path = os.fspath(path)
        self.line = line
        where = self.path if line is None else f"{self.path}:{line}"
        super().__init__(f"{where}: {problem}")


class Row(NamedTuple):
    """One example.

    Attributes:
      label: 0 or 1.
      numeric: one value per numeric column; None where missing.
      categorical: one value per categorical column; "" where missing.
    """

    label: int
    numeric: tuple[float | None, ...]
    categorical: tuple[str, ...]


def numbered_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each line that is not blank.

    Gzip is recognised, and a byte order mark, which some programs put first, is left out.

    Raises:
      DataError: the file is missing, is not a file, cannot be read, is not UTF-8, or is bad gzip.
    """
    number = 0
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if zipped else raw
            for number, line in enumerate(stream, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                # Not strip(): a line of tabs is a row without values, and its reader's to refuse.
                if text.strip(" "):
                    yield number, text
    except FileNotFoundError as e:
        raise DataError(path, None, "no such file; expected a data file") from e
    except UnicodeDecodeError as e:
        raise DataError(
            path, number, f"expected UTF-8 text, found byte {e.object[e.start]:#04x}"
        ) from e
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise DataError(path, number + 1, f"expected complete gzip data, found: {e}") from e
    except OSError as e:
        raise DataError(path, None, f"cannot be read: {e.strerror or e}") from e


def parse_integer(
    path: str | os.PathLike[str], line: int, column: str, text: str, *, point_zero: bool = False
) -> float:
    """Return an integer: digits, with a minus sign or without.

    Args:
      path: the file, for the error.
      line: the line, for the error.
      column: the column's name, for the error.
      text: the digits.
      point_zero: take `3.0` for 3, too.

    Returns:
      The value; a float, like every number of a row.

    Raises:
      DataError: `text` is not an integer, or has more digits than a float can tell from infinity.
    """
    pattern = _INTEGER_OR_POINT_ZERO if point_zero else _INTEGER
    value = float(text) if pattern.fullmatch(text) else math.inf
    if math.isinf(value):
        raise DataError(path, line, f"column {column}: expected an integer, found {text!r}")
    return value


def stable_bucket(text: str, buckets: int) -> int:
    """Bucket of a category: CRC-32 of its UTF-8 modulo `buckets`; the same in every process.

    (Python's own `hash` of a string differs from process to process.)
    """
    return zlib.crc32(text.encode()) % buckets
