# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""All-gathers of tensors that are not cut as TensorFlow's ring cuts them."""

import pytest

from tests.cluster.collectives.ranks import Ranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_SIZES = [7, 1, 300]
_BOUNDS = [0, 0, 3, 7, 0, 1, 1, 1, 0, 250, 250, 300]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(["grpc+fuse"] * 3) as ranks:
        yield ranks


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int64"])
def test_all_members_get_all(ranks, dtype):
    # (Whole numbers that have a place in each of the types.)
    sizes, bounds = [7, 1, 250], [*_BOUNDS[:8], 0, 200, 200, 250]
    for result in ranks.values("bounded", dtype=dtype, sizes=sizes, bounds=bounds):
        assert result == [[float(i) for i in range(size)] for size in sizes]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (_BOUNDS[:-1], "there are 11 bounds; 3 tensors and 3 members have 12"),
        (
            [1, 1, 3, 7, *_BOUNDS[4:]],
            "the bounds of tensor 0 of 7 elements are [1, 1, 3, 7], which do not go from 0 to its "
            "end",
        ),
        ([*_BOUNDS[:-1], 301], "tensor 2 of 300 elements are [0, 250, 250, 301]"),
        ([0, 4, 3, 7, *_BOUNDS[4:]], "tensor 0 of 7 elements are [0, 4, 3, 7]"),
        ([0, 5, 5, 7, *_BOUNDS[4:]], "of 3 has 5 elements, got 0"),
    ],
)
def test_bounds_that_are_none(given, text):
    # (An error ends the collectives of a process.)
    with Ranks(["grpc+fuse"] * 3) as ranks:
        ranks.start("bounded", dtype="float32", sizes=_SIZES, bounds=_BOUNDS, given=given)
        errors = ranks.wait()
    assert {error.kind for error in errors} == {"InvalidArgumentError"}
    assert any(text in error.text for error in errors), errors


def test_members_that_cut_otherwise():
    with Ranks(["grpc+fuse"] * 2) as ranks:
        # Each has as many elements as the other one expects.
        for rank, bounds in enumerate([[0, 4, 8, 0, 4, 8], [0, 8, 8, 0, 0, 8]]):
            ranks.start("bounded", [rank], dtype="float32", sizes=[8, 8], bounds=bounds)
        for error in ranks.wait():
            assert error.kind == "InvalidArgumentError", error
            assert error.text.count(", cut at ") == 2, error
