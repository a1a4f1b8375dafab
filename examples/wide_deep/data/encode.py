# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""From rows to what the workers read: hashed ids and scaled numbers in fixed-length records.

The coordinator encodes a data file once; each worker then reads whole batches from the encoded file
with one op, so neither Python nor the coordinator is on the path of a step.

One record is 4 * (1 + numeric + columns) bytes, little-endian: the label and the numbers as
float32, then one int32 id per column.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from examples.wide_deep.data import adult, criteo
from examples.wide_deep.data.common import Row, stable_bucket

if TYPE_CHECKING:  # encoding alone needs no TensorFlow, which takes seconds to import
    import tensorflow as tf

_WORD_BYTES = 4
_SEPARATOR = "\x1f"


@dataclasses.dataclass(frozen=True)
class Schema:
    """How the rows of one data set become ids.

    Attributes:
      name: of the data set.
      numeric: names of the numeric columns.
      categorical: names of the categorical columns.
      buckets: hash buckets of each categorical column.
      numeric_buckets: hash buckets of each numeric column's magnitude.
      crosses: columns (categorical, or numeric by magnitude) hashed together, for the wide part.
      cross_buckets: hash buckets of each cross.
    """

    name: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    buckets: int
    numeric_buckets: int
    crosses: tuple[tuple[str, ...], ...]
    cross_buckets: int

    def id_columns(self) -> list[tuple[str, int]]:
        """Name and number of buckets of each id column: categorical, numeric, crosses."""
        return [
            *((name, self.buckets) for name in self.categorical),
            *((name, self.numeric_buckets) for name in self.numeric),
            *(("_x_".join(cross), self.cross_buckets) for cross in self.crosses),
        ]

    @property
    def record_words(self) -> int:
        """32-bit words of one record."""
        return 1 + len(self.numeric) + len(self.id_columns())

    def encode(self, row: Row) -> tuple[list[float], list[int]]:
        """Label and numbers, and ids, of one row."""
        magnitudes = [magnitude(value) for value in row.numeric]
        values = [*row.categorical, *magnitudes]
        by_name = dict(zip((*self.categorical, *self.numeric), values, strict=True))
        texts = [*values, *(_SEPARATOR.join(by_name[n] for n in cross) for cross in self.crosses)]
        ids = [
            stable_bucket(f"{name}={text}", buckets)
            for (name, buckets), text in zip(self.id_columns(), texts, strict=True)
        ]
        return [float(row.label), *(scaled(value) for value in row.numeric)], ids


ADULT = Schema(
    name="adult",
    numeric=adult.NUMERIC,
    categorical=adult.CATEGORICAL,
    buckets=128,
    numeric_buckets=64,
    crosses=(
        ("education", "occupation"),
        ("native_country", "occupation"),
        ("age", "education", "occupation"),
        ("marital_status", "relationship"),
        ("workclass", "occupation"),
        ("age", "hours_per_week"),
    ),
    cross_buckets=1000,
)

CRITEO = Schema(
    name="criteo",
    numeric=criteo.NUMERIC,
    categorical=criteo.CATEGORICAL,
    buckets=1000,
    numeric_buckets=100,
    crosses=(("C6", "C9"), ("C14", "C17"), ("C20", "C23")),
    cross_buckets=2000,
)

SCHEMAS = {schema.name: schema for schema in (ADULT, CRITEO)}


def scaled(value: float | None) -> float:
    """Bring counts and amounts to one scale by a logarithm: sign(v) ln(1 + |v|), over 10.

    A missing value is 0; the id of its magnitude says that it was missing.
    """
    return 0.0 if value is None else math.copysign(math.log1p(abs(value)), value) / 10


def magnitude(value: float | None) -> str:
    """Return a number as a category: itself up to 2, then floor(ln(v)^2); "" where missing.

    The winning solution of Criteo's display advertising challenge (2014) cuts its counts like this.
    """
    if value is None:
        return ""
    return f"L{int(math.log(value) ** 2)}" if value > 2 else f"{value:g}"


def check_batches(name: str, rows: int, batch: int, workers: int) -> None:
    """Check that there is a whole batch for each worker.

    Args:
      name: what the rows are, for the error.
      rows: how many there are.
      batch: rows per batch.
      workers: number of workers that share the batches.

    Raises:
      ValueError: there are fewer.
    """
    if rows // batch < workers:
        raise ValueError(
            f"{name} has {rows} rows, that is {rows // batch} batches of {batch}; {workers} "
            "worker(s) need one each: take a smaller batch or more rows"
        )


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A file of encoded rows.

    Attributes:
      path: the file.
      rows: number of records.
      schema: how they were made.
    """

    path: Path
    rows: int
    schema: Schema

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Label float32 [rows], numbers float32 [rows, numeric], ids int32 [rows, columns]."""
        words = np.fromfile(self.path, "<i4").reshape(self.rows, self.schema.record_words)
        floats = np.ascontiguousarray(words[:, : 1 + len(self.schema.numeric)]).view("<f4")
        return floats[:, 0], floats[:, 1:], words[:, 1 + len(self.schema.numeric) :]

    def dataset(self, batch: int, worker: tf.Tensor | int = 0, workers: int = 1) -> tf.data.Dataset:
        """Return an endless dataset of whole batches; worker w of n takes each n-th one.

        The rows after the last whole batch are left out.

        Args:
          batch: rows per batch.
          worker: index of the worker that runs the dataset.
          workers: number of workers.

        Returns:
          Elements (label, numeric, ids) with the shapes of `arrays`, `batch` rows each.

        Raises:
          ValueError: there are fewer whole batches than workers.
        """
        import tensorflow as tf

        check_batches(os.fspath(self.path), self.rows, batch, workers)
        record_bytes = self.schema.record_words * _WORD_BYTES
        batches = tf.data.FixedLengthRecordDataset(
            os.fspath(self.path),
            record_bytes=record_bytes * batch,
            footer_bytes=record_bytes * (self.rows % batch),
        )
        if workers > 1:
            batches = batches.shard(workers, worker)
        return batches.repeat().map(lambda record: self._decode(record, batch))

    def _decode(self, record: tf.Tensor, batch: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        import tensorflow as tf

        words = tf.reshape(tf.io.decode_raw(record, tf.int32), [batch, self.schema.record_words])
        floats = tf.bitcast(words[:, : 1 + len(self.schema.numeric)], tf.float32)
        return floats[:, 0], floats[:, 1:], words[:, 1 + len(self.schema.numeric) :]


def encode_file(
    rows: Iterable[Row],
    schema: Schema,
    path: str | os.PathLike[str],
    *,
    shuffle_seed: int | None = None,
    window: int = 1 << 17,
    on_rows: Callable[[int], None] | None = None,
) -> Encoded:
    """Write rows as records.

    Args:
      rows: the rows; read once, `window` of them held at a time.
      schema: of the data set.
      path: file to write.
      shuffle_seed: permutes the rows inside each window by this seed; None keeps their order.
      window: rows per window.
      on_rows: called with the number of rows written so far.

    Returns:
      The encoded file.
    """
    generator = None
    if shuffle_seed is not None:
        generator = np.random.Generator(np.random.Philox(key=shuffle_seed))
    count = 0
    held: list[Row] = []

    def flush(out: BinaryIO) -> None:
        nonlocal count
        if not held:
            return
        words = encode_rows(held, schema)
        if generator is not None:
            # Sorting drawn numbers, not Generator.permutation: its algorithm may change.
            words = words[np.argsort(generator.random(len(held)), kind="stable")]
        words.tofile(out)
        count += len(held)
        held.clear()
        if on_rows:
            on_rows(count)

    with open(path, "wb") as out:
        for row in rows:
            held.append(row)
            if len(held) == window:
                flush(out)
        flush(out)
    return Encoded(Path(path), count, schema)


def encode_rows(rows: Sequence[Row], schema: Schema) -> np.ndarray:
    """Return records of some rows: int32 words, [rows, record_words], the floats by their bits."""
    encoded = [schema.encode(row) for row in rows]
    floats = np.array([floats for floats, _ in encoded], "<f4")
    ids = np.array([ids for _, ids in encoded], "<i4")
    return np.concatenate([floats.view("<i4"), ids], axis=1)
