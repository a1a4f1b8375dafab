# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ranks put into collectives, made from seeds, and what they report of a result: a digest."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

_DTYPES = {name: getattr(tf, name).as_numpy_dtype for name in
           ("float32", "float64", "float16", "bfloat16", "int32", "int64")}  # fmt: skip


def values(dtype: str, elements: int, rank: int, kind: str = "mixed") -> np.ndarray:
    """What a rank puts in. Rounding makes the order of additions visible in "mixed".

    Args:
      dtype: name of the type.
      elements: of a vector.
      rank: whose.
      kind: "mixed" (magnitudes from 2**-20 to 2**20, both signs), "special" (those, with NaNs of
        several payloads, infinities, zeros of both signs and denormals), or "small" (whole numbers
        whose sums and products are exact).
    """
    rng = np.random.default_rng([elements, rank, sorted(_DTYPES).index(dtype)])
    numpy_type = _DTYPES[dtype]
    if kind == "small":
        return rng.integers(-2, 3, elements).astype(numpy_type)
    if dtype.startswith("int"):
        bits = np.iinfo(numpy_type).bits
        return rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), elements, dtype=numpy_type)
    scale = 8 if dtype == "float16" else 20
    mixed = np.ldexp(rng.standard_normal(elements), rng.integers(-scale, scale + 1, elements))
    mixed = mixed.astype(np.float32 if dtype == "bfloat16" else numpy_type).astype(numpy_type)
    if kind == "special" and elements:
        _put_specials(mixed, rng)
    return mixed


def _put_specials(array: np.ndarray, rng: np.random.Generator) -> None:
    size = array.dtype.itemsize
    bits = array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[size])
    mantissa = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[str(array.dtype)]
    infinity = (1 << (8 * size - 1)) - (1 << mantissa)
    quiet = infinity | (1 << (mantissa - 1))
    sign = 1 << (8 * size - 1)
    # (Signalling NaNs become quiet in arithmetic, with their payload: also a case.)
    specials = [infinity, sign | infinity, quiet, quiet | 3, sign | quiet | 5, infinity | 2,
                0, sign, 1, sign | 1]  # fmt: skip
    at = rng.random(len(array)) < 0.3
    bits[at] = np.array(specials, bits.dtype)[rng.integers(0, len(specials), int(at.sum()))]


def digest(tensor: Any) -> str:
    """Type, shape and all bits."""
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    return f"{array.dtype}{list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:20]}"
