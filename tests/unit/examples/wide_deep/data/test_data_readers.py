# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Readers of Adult and Criteo files: what they read, and the text of each error."""

import gzip
import os
from pathlib import Path

import pytest

from examples.wide_deep.data import adult, criteo
from examples.wide_deep.data.common import DataError, Row, stable_bucket

_ADULT_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male,"
    " 2174, 0, 40, United-States, <=50K"
)
_ADULT_ROW = Row(
    0,
    (39.0, 77516.0, 13.0, 2174.0, 0.0, 40.0),
    (
        "State-gov",
        "Bachelors",
        "Never-married",
        "Adm-clerical",
        "Not-in-family",
        "White",
        "Male",
        "United-States",
    ),
)
_CRITEO_FIELDS = ["1", *(str(i) for i in range(13)), *(f"{i:08x}" for i in range(26))]
_CRITEO_ROW = Row(1, tuple(float(i) for i in range(13)), tuple(f"{i:08x}" for i in range(26)))
_DATA = Path(
    os.environ.get("TF_FUSE_DATA") or Path(__file__).resolve().parents[6] / "shared" / "data"
)
_needs_data = pytest.mark.skipif(
    not (_DATA / "adult" / "adult.data").exists(),
    reason="no real data: set TF_FUSE_DATA to a folder with adult/ and criteo/",
)


def _write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "data.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _error(read, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read(path))
    return str(caught.value).replace(str(path), "FILE")


def test_adult_row(tmp_path):
    assert list(adult.read(_write(tmp_path, _ADULT_LINE + "\n\n"))) == [_ADULT_ROW]


def test_adult_test_file_has_a_remark_and_dotted_labels(tmp_path):
    text = f"|1x3 Cross validator\n{_ADULT_LINE}.\n{_ADULT_LINE.replace('<=50K', '>50K.')}\n"
    assert [row.label for row in adult.read(_write(tmp_path, text))] == [0, 1]


@pytest.mark.parametrize("read", [adult.read, criteo.read])
def test_byte_order_mark_is_no_text(tmp_path, read):
    line, row = {
        adult.read: (_ADULT_LINE, _ADULT_ROW),
        criteo.read: ("\t".join(_CRITEO_FIELDS), _CRITEO_ROW),
    }[read]
    assert list(read(_write(tmp_path, f"\ufeff{line}\n{line}\n"))) == [row] * 2


def test_adult_missing_values(tmp_path):
    text = _ADULT_LINE.replace("State-gov", "?").replace("39", "?")
    (row,) = adult.read(_write(tmp_path, text))
    assert row.categorical[0] == ""
    assert row.numeric[0] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1, 2\n", "FILE:1: expected 15 comma-separated columns, found 2"),
        (
            f"{_ADULT_LINE}\n{_ADULT_LINE.replace('39', 'old')}\n",
            "FILE:2: column age: expected an integer, found 'old'",
        ),
        *(
            (
                _ADULT_LINE.replace("2174", text),
                f"FILE:1: column capital_gain: expected an integer, found {text!r}",
            )
            for text in ("nan", "", "2.7", "3.0", "1_000", "1e300", "+5", "٣", "9" * 400)
        ),
        (
            _ADULT_LINE.replace("<=50K", "50K"),
            "FILE:1: expected the label <=50K or >50K, found '50K'",
        ),
        (
            f"{_ADULT_LINE}\n|remark\n",
            "FILE:2: expected 15 comma-separated columns, found 1",
        ),
        ("", "FILE: expected rows of the Adult data set, found none"),
        ("|1x3 Cross validator\n", "FILE: expected rows of the Adult data set, found none"),
        (b"a\n\xff\n", "FILE:1: expected 15 comma-separated columns, found 1"),
        (
            _ADULT_LINE.encode() + b"\n\xff\n",
            "FILE:2: expected UTF-8 text, found byte 0xff",
        ),
    ],
)
def test_adult_errors(tmp_path, text, expected):
    assert _error(adult.read, _write(tmp_path, text)) == expected


@pytest.mark.parametrize("read", [adult.read, criteo.read])
def test_missing_file_and_folder(tmp_path, read):
    assert _error(read, tmp_path / "none") == "FILE: no such file; expected a data file"
    assert _error(read, tmp_path) == "FILE: cannot be read: Is a directory"


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("header", [False, True])
def test_criteo_separators_and_header(tmp_path, separator, header):
    lines = [separator.join(criteo.COLUMNS)] * header + [separator.join(_CRITEO_FIELDS)] * 2
    assert list(criteo.read(_write(tmp_path, "\n".join(lines)))) == [_CRITEO_ROW] * 2


def _header(**changes: str) -> str:
    return ",".join(changes.get(name, name) for name in criteo.COLUMNS)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            _header(label="click", I1="I2", I2="I1"),
            "FILE:1: header column 2: expected I1, found 'I2'; the columns are label or click, I1 "
            "to I13, C1 to C26, in this order",
        ),
        (
            ",".join(criteo.COLUMNS[:-1]),
            "FILE:1: expected 40 comma-separated columns (label, 13 integer, 26 categorical), "
            "found 39",
        ),
        (
            ",".join([*criteo.COLUMNS[1:], "label"]),
            "FILE:1: expected the label 0 or 1, found 'I1'",
        ),
    ],
)
def test_criteo_header_errors(tmp_path, header, expected):
    text = f"{header}\n{','.join(_CRITEO_FIELDS)}\n"
    assert _error(criteo.read, _write(tmp_path, text)) == expected


def test_criteo_tab_separated_quotes_are_text(tmp_path):
    (row,) = criteo.read(_write(tmp_path, "\t".join([*_CRITEO_FIELDS[:39], '"x"'])))
    assert row.categorical[-1] == '"x"'


def test_criteo_gzip(tmp_path):
    text = gzip.compress(("\t".join(_CRITEO_FIELDS) + "\n").encode())
    assert list(criteo.read(_write(tmp_path, text))) == [_CRITEO_ROW]
    found = _error(criteo.read, _write(tmp_path, text[:-9]))
    assert found.startswith("FILE:1: expected complete gzip data, found: ")


def test_criteo_missing_and_float_like_values(tmp_path):
    fields = ["0", "", "-1", "3.0", *[""] * 36]
    (row,) = criteo.read(_write(tmp_path, "\t".join(fields)))
    assert row == Row(0, (None, -1.0, 3.0, *[None] * 10), ("",) * 26)


def _changed(index: int, value: str) -> str:
    fields = list(_CRITEO_FIELDS)
    fields[index] = value
    return "\t".join(fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "\t".join(_CRITEO_FIELDS[1:]),
            "FILE:1: expected 40 tab-separated columns (label, 13 integer, 26 categorical), "
            "found 39",
        ),
        (
            "\t".join(_CRITEO_FIELDS) + "\n" + ",".join(_CRITEO_FIELDS),
            "FILE:2: expected 40 tab-separated columns (label, 13 integer, 26 categorical), "
            "found 1",
        ),
        (
            "label,I1\n",
            "FILE:1: expected 40 comma-separated columns (label, 13 integer, 26 "
            "categorical), found 2",
        ),
        (_changed(0, "2"), "FILE:1: expected the label 0 or 1, found '2'"),
        (_changed(13, "x"), "FILE:1: column I13: expected an integer, found 'x'"),
        *(
            (_changed(1, text), f"FILE:1: column I1: expected an integer, found {text!r}")
            for text in ("inf", "2.7", "3.00", "1_000", "1e300", "+5", " 5", "-", "٣", "9" * 400)
        ),
        ("\t" * 39, "FILE:1: expected the label 0 or 1, found ''"),
        ("", "FILE: expected rows in Criteo's format, found none"),
        (",".join(criteo.COLUMNS), "FILE: expected rows in Criteo's format, found none"),
    ],
)
def test_criteo_errors(tmp_path, text, expected):
    assert _error(criteo.read, _write(tmp_path, text)) == expected


def test_stable_bucket_is_crc32():
    assert [stable_bucket(t, 1000) for t in ("", "a", "C1=05db9164")] == [0, 907, 388]


@_needs_data
def test_real_adult():
    train = list(adult.read(_DATA / "adult" / "adult.data"))
    test = list(adult.read(_DATA / "adult" / "adult.test"))
    assert (len(train), sum(row.label for row in train)) == (32561, 7841)
    assert (len(test), sum(row.label for row in test)) == (16281, 3846)
    assert train[0] == _ADULT_ROW


@_needs_data
def test_real_criteo_sample():
    rows = list(criteo.read(_DATA / "criteo" / "criteo_sample.csv"))
    assert (len(rows), sum(row.label for row in rows)) == (200, 49)
    assert rows[0].numeric[:4] == (None, 3.0, 260.0, None)
    assert rows[0].categorical[0] == "05db9164"
