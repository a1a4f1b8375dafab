# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reader of the UCI Adult census files, `adult.data` and `adult.test`.

Fifteen comma-separated columns, a space after each comma, `?` for a missing value. The test file
begins with the line `|1x3 Cross validator` and its labels end in a dot. Source: Kohavi, "Scaling
Up the Accuracy of Naive-Bayes Classifiers", KDD 1996.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from examples.wide_deep.data.common import DataError, Row, numbered_lines, parse_integer

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
)
NUMERIC = (
    "age",
    "fnlwgt",
    "education_num",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
)
CATEGORICAL = tuple(column for column in COLUMNS if column not in NUMERIC)
LABELS = {"<=50K": 0, ">50K": 1}

_NUMERIC_AT = [COLUMNS.index(column) for column in NUMERIC]
_CATEGORICAL_AT = [COLUMNS.index(column) for column in CATEGORICAL]
_MISSING = "?"


def read(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Rows of an Adult file, in order; plain or gzip.

    Args:
      path: the file.

    Yields:
      Rows with 6 numeric and 8 categorical values, in the order of NUMERIC and CATEGORICAL.

    Raises:
      DataError: the file is missing or has no rows; a row has another number of columns, a
        malformed integer or an unknown label. The text has file and line, what was expected and
        what was found.
    """
    rows = 0
    for line, text in numbered_lines(path):
        if line == 1 and text.startswith("|"):
            continue  # the test file's remark
        fields = [field.strip() for field in text.split(",")]
        if len(fields) != len(COLUMNS) + 1:
            raise DataError(
                path,
                line,
                f"expected {len(COLUMNS) + 1} comma-separated columns, found {len(fields)}",
            )
        label = fields[-1].removesuffix(".")
        if label not in LABELS:
            raise DataError(path, line, f"expected the label <=50K or >50K, found {fields[-1]!r}")
        numeric = tuple(
            None if fields[i] == _MISSING else parse_integer(path, line, COLUMNS[i], fields[i])
            for i in _NUMERIC_AT
        )
        categorical = tuple("" if fields[i] == _MISSING else fields[i] for i in _CATEGORICAL_AT)
        rows += 1
        yield Row(LABELS[label], numeric, categorical)
    if not rows:
        raise DataError(path, None, "expected rows of the Adult data set, found none")
