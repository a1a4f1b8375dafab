# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of `compress` put into variables, and what rounding makes of it."""

import numpy as np

ROWS, WIDTH, BATCH = 1000, 16, 64


def nearest(values):
    """The nearest bfloat16, of two the even one; NaN and infinities stay."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def initial(name):
    seed = sum(name.encode())
    return np.random.default_rng(seed).normal(size=[ROWS, WIDTH]).astype(np.float32)


def special():
    values = initial("special")
    values[999, :3] = [np.nan, np.inf, -np.inf]
    return values


def ids():
    # (bfloat16 has none of 257, 259, 999.)
    return np.concatenate([[257, 259, 999], np.arange(BATCH - 3)]).astype(np.int32)


def square(name, shape):
    return np.random.default_rng(sum(name.encode())).normal(size=shape).astype(np.float32)
