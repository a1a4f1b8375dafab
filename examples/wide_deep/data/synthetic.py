# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Synthetic data in Criteo's and in Adult's format: any size, cardinality and skew, from a seed.

    python -m examples.wide_deep.data.synthetic --rows 1000000 --skew 1.2 --out criteo.tsv

Categories follow a bounded Zipf law: the k-th most frequent of `cardinality` has probability
proportional to 1 / k^skew. Each category has a weight, and the label is drawn from the logistic
function of their sum, so a model has something to learn and AUC means something. The first n rows
are the same whatever the number of rows. Only `Generator.random` is drawn from, whose stream
NumPy keeps between versions.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from examples.wide_deep.data import adult, criteo
from examples.wide_deep.data.common import Row

_BLOCK_ROWS = 4096
_MISSING_PROBABILITY = 0.05

_ADULT_CARDINALITY = {
    "workclass": 8,
    "education": 16,
    "marital_status": 7,
    "occupation": 14,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native_country": 41,
}
_ADULT_RANGE = {
    "age": (17, 90),
    "fnlwgt": (12_285, 1_484_705),
    "education_num": (1, 16),
    "capital_gain": (0, 99_999),
    "capital_loss": (0, 4_356),
    "hours_per_week": (1, 99),
}


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """A stream of rows.

    Attributes:
      rows: how many.
      cardinality: distinct values of each categorical column (of Criteo's; Adult's are its own).
      skew: exponent of the Zipf law; 0 is uniform.
      seed: of everything.
    """

    rows: int
    cardinality: int = 10_000
    skew: float = 1.1
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
          ValueError: one is out of range.
        """
        if self.rows < 1 or self.cardinality < 1 or self.skew < 0 or self.seed < 0:
            raise ValueError(
                "synthetic data needs rows >= 1, cardinality >= 1, skew >= 0 and seed >= 0; got "
                f"rows={self.rows}, cardinality={self.cardinality}, skew={self.skew}, "
                f"seed={self.seed}"
            )

    def criteo(self) -> Iterator[Row]:
        """Rows in Criteo's format: categories are 8 hexadecimal digits, integers heavy-tailed."""
        columns = len(criteo.CATEGORICAL)
        cdfs = [self._cdf(self.cardinality)] * columns
        for uniform, rank, label in self._blocks(len(criteo.NUMERIC), cdfs):
            present = uniform[:, :, 0] >= _MISSING_PROBABILITY
            integers = np.floor(np.exp(uniform[:, :, 1] * 8.0) - 1.0)
            shown = rank[:, :, 1] >= 0
            tokens = _scramble(rank[:, :, 0], np.arange(columns), self.seed)
            for i in range(len(label)):
                yield Row(
                    int(label[i]),
                    tuple(
                        float(v) if p else None
                        for v, p in zip(integers[i], present[i], strict=True)
                    ),
                    tuple(
                        f"{t:08x}" if s else "" for t, s in zip(tokens[i], shown[i], strict=True)
                    ),
                )

    def adult(self) -> Iterator[Row]:
        """Rows in Adult's format."""
        low, high = np.array([_ADULT_RANGE[c] for c in adult.NUMERIC], float).T
        cdfs = [self._cdf(_ADULT_CARDINALITY[c]) for c in adult.CATEGORICAL]
        for uniform, rank, label in self._blocks(len(adult.NUMERIC), cdfs):
            integers = np.floor(low + uniform[:, :, 1] ** 3 * (high - low + 1))
            integers = np.minimum(integers, high)
            shown = rank[:, :, 1] >= 0
            for i in range(len(label)):
                yield Row(
                    int(label[i]),
                    tuple(float(v) for v in integers[i]),
                    tuple(
                        f"{c}_{k}" if s else ""
                        for c, k, s in zip(adult.CATEGORICAL, rank[i, :, 0], shown[i], strict=True)
                    ),
                )

    def _cdf(self, cardinality: int) -> np.ndarray:
        weights = np.arange(1, cardinality + 1, dtype=float) ** -self.skew
        return np.cumsum(weights) / np.sum(weights)

    def _blocks(
        self, numeric: int, cdfs: Sequence[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Blocks of draws: numbers [n, numeric, 2], (rank, shown) [n, columns, 2], label [n]."""
        columns = len(cdfs)
        for block in range((self.rows + _BLOCK_ROWS - 1) // _BLOCK_ROWS):
            random = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, block]))
            uniform = random.random((_BLOCK_ROWS, numeric, 2))
            draws = random.random((_BLOCK_ROWS, columns, 2))
            threshold = random.random(_BLOCK_ROWS)
            rank = np.stack(
                [
                    np.minimum(np.searchsorted(cdf, draws[:, c, 0], side="right"), len(cdf) - 1)
                    for c, cdf in enumerate(cdfs)
                ],
                axis=1,
            )
            shown = np.where(draws[:, :, 1] >= _MISSING_PROBABILITY, 0, -1)
            weight = _scramble(rank, np.arange(columns), self.seed + 1) / 2.0**32 - 0.5
            score = -1.2 + (weight * (shown == 0)).sum(axis=1) * (6.0 / np.sqrt(columns))
            score += (uniform[:, :, 1] - 0.5).sum(axis=1) * (2.0 / np.sqrt(numeric))
            label = threshold < 1.0 / (1.0 + np.exp(-score))
            left = min(_BLOCK_ROWS, self.rows - block * _BLOCK_ROWS)
            yield uniform[:left], np.stack([rank, shown], axis=2)[:left], label[:left]


def _scramble(rank: np.ndarray, column: np.ndarray, seed: int) -> np.ndarray:
    """32 bits per (category, column), distinct within a column: a bijection of the category."""
    mask = np.uint64(0xFFFFFFFF)
    x = (rank.astype(np.uint64) + column.astype(np.uint64) * np.uint64(0x9E3779B1)) & mask
    x = (x + np.uint64(seed & 0xFFFF) * np.uint64(0x85EBCA6B)) & mask
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & mask
    return x ^ (x >> np.uint64(16))


def format_criteo(row: Row, separator: str = "\t") -> str:
    """Return a line of a Criteo file, without its end."""
    numbers = ("" if v is None else f"{v:.0f}" for v in row.numeric)
    return separator.join([str(row.label), *numbers, *row.categorical])


def format_adult(row: Row) -> str:
    """Return a line of an Adult file, without its end."""
    by_name = dict(zip(adult.NUMERIC, (f"{v:.0f}" for v in row.numeric if v is not None)))  # noqa: B905
    by_name.update(zip(adult.CATEGORICAL, row.categorical, strict=True))
    label = next(text for text, value in adult.LABELS.items() if value == row.label)
    return ", ".join([*(by_name[c] or "?" for c in adult.COLUMNS), label])


def main(argv: Sequence[str] | None = None) -> int:
    """Write a file; see --help."""
    parser = argparse.ArgumentParser(description="Write synthetic data.")
    parser.add_argument("--format", choices=("criteo", "adult"), default="criteo")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument(
        "--cardinality", type=int, default=10_000, help="values per column (criteo)"
    )
    parser.add_argument("--skew", type=float, default=1.1, help="Zipf exponent; 0 is uniform")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--separator", choices=("tab", "comma"), default="tab", help="(criteo)")
    parser.add_argument("--header", action="store_true", help="first line with names (criteo)")
    parser.add_argument("--out", type=Path, required=True, help="gzip when it ends in .gz")
    args = parser.parse_args(argv)
    try:
        data = Synthetic(args.rows, args.cardinality, args.skew, args.seed)
    except ValueError as e:
        parser.error(str(e))
    from rich.progress import track

    separator = "\t" if args.separator == "tab" else ","
    rows = data.criteo() if args.format == "criteo" else data.adult()
    opener = gzip.open if args.out.suffix == ".gz" else open
    out: IO[str]
    with opener(args.out, "wt", encoding="utf-8") as out:
        if args.header and args.format == "criteo":
            out.write(separator.join(criteo.COLUMNS) + "\n")
        for row in track(rows, "writing", total=args.rows):
            line = format_criteo(row, separator) if args.format == "criteo" else format_adult(row)
            out.write(line + "\n")
    print(f"{args.out}: {args.rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
