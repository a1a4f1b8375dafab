# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reductions that tests compare with those of stock TensorFlow: sizes, types and operations."""

import itertools
import os

import pytest

from tests.cluster.collectives.ranks import Reduce

LONG = os.environ.get("TF_FUSE_TEST_COLLECTIVES") == "1"
SIZES = [2, 3, 4] + [8] * LONG  # of groups
RANKS = max(SIZES)
SLOW = pytest.mark.slow
# Three are neither all ranks nor a power of two.
SIZES_BUT_MOST_SLOW = [pytest.param(n, marks=() if n == 3 else SLOW) for n in SIZES]
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
MB = 1 << 20


def _lengths(n):
    """Around what the ring and the library divide by, and primes."""
    return sorted({1, n - 1, n, n + 1, 15, 16, 17, 16 * n - 1, 16 * n, 16 * n + 1, 101, 997})


def _around(limit, element_bytes):
    return [limit // element_bytes + d for d in (-1, 0, 1)]


def _large(n, dtype):
    """Around the limits of one step, of what goes through a socket, and of pieces."""
    size = BYTES[dtype]
    limits = [16 << 10, 32 << 10, (32 << 10) * n]
    if dtype == "float32":
        limits += [MB, MB * n]
    return [length for limit in limits for length in _around(limit, size)]


def all_specs(n):
    specs = [Reduce(n, dtype, e) for dtype in BYTES for e in _lengths(n) + _large(n, dtype)]
    specs += [
        Reduce(n, dtype, 1009, merge, final)
        for dtype in BYTES
        for merge, final in itertools.product(("Add", "Mul", "Max", "Min"), ("Id", "Div"))
    ]
    specs += [
        Reduce(n, dtype, e, merge, final, "special")
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for merge in ("Mul", "Max", "Min")
        for final in ("Id", "Div")
        for e in (17, 20011)
    ]
    return specs


def payloads(n):
    """Sums of several NaNs: which one's bits are the sum's depends on the order of operands."""
    return [
        Reduce(n, dtype, elements, "Add", final, "special")
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for final in ("Id", "Div")
        for elements in (17, 20011)
    ]


def megabytes(n):
    """Two subdivisions of the ring, from 4 MiB for each member; and one, where it is asked for."""
    lengths = [n * MB, n * MB + 4 * n + 1, n * MB + 100003]
    return [
        *(Reduce(n, "float32", e) for e in lengths),
        Reduce(n, "float32", n * MB + 6, subdivs=-1),
        Reduce(n, "int64", n * 3 * MB // 4),
    ]


def same(specs, stock, ours):
    """Compares by specification, and names those that differ."""
    different = [
        (str(spec), rank)
        for rank, (theirs, its) in enumerate(zip(stock, ours, strict=True))
        for spec, a, b in zip(specs, theirs, its, strict=True)
        if a != b
    ]
    assert not different, f"{len(different)} of {len(specs)}: {different[:10]}"


def all_right(results):
    """That members have the same, and that something was compared."""
    for of_one in zip(*results, strict=True):
        got = {x for x in of_one if x is not None}
        assert len(got) == 1, of_one
