# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the table of docs/weight_update.md says of optimizers, for biases of every size to 4097.

Two workers train them for forty steps, with the option off and on. It takes hours, so
TF_FUSE_TEST_UPDATES=all (`make updates UPDATES=all`) runs it.
"""

import os

import pytest

from tests.cluster.all_passes import bias_sizes
from tests.cluster.collectives.ranks import Ended, Error, Ranks
from tests.cluster.shard_update.matrix_rows import EXACT, INEXACT, LIMIT, has

_ALL = os.environ.get("TF_FUSE_TEST_UPDATES") == "all"
_SECONDS = 800.0
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not _ALL, reason="very long: make updates UPDATES=all"),
    pytest.mark.timeout(4 * _SECONDS),
]
# (Of vectors Muon makes what AdamW does.)
_ROWS = [row for row in [*EXACT, ("keras", "Muon", {}, 2), *INEXACT] if has(row[0])]
# With sparse gradients, stock Adafactor of Keras 3 raises errors, and that of tf_keras makes NaNs.
# Muon leaves matrices alone (test_matrix.py).
_DLRM = [row for row in _ROWS if row[1] not in ("Adafactor", "Muon")]
# Its norm is of sparse gradients, too, which are not alike on all replicas.
_WHOLE_DLRM = ("tf_keras", "Adam", {"global_clipnorm": 0.5}, 2)


def _rows(rows):
    return pytest.mark.parametrize("row", rows, ids=lambda row: " ".join([*row[:2], *row[2]]))


@pytest.fixture(scope="module")
def workers():
    with Ranks(["grpc+fuse"] * 2, server=False, patient=True) as ranks:
        yield ranks


def _trained(workers, row, sizes=()):
    """What each worker found, and what it decided; the values are as the row says."""
    library, name, options, slots = row
    args = {"library": library, "name": name, "options": options, "sizes": sizes}
    args["exact"] = row not in INEXACT
    workers.start("trained_twice", **args)
    results = workers.wait(seconds=_SECONDS)
    for rank, one in enumerate(results):
        assert one is not Ended and not isinstance(one, Error), f"{one}\n{workers.log(rank)}"
        (decided,) = one["decided"]
        assert one["losses"] > 30, one
        assert decided["slots"] == decided["cut"] * slots, decided
        if row in INEXACT:
            assert one["largest"] <= LIMIT, one
        else:
            assert (one["differ"], one["same_losses"], decided["inexact"]) == ([], True, 0), one
    return [(one, one["decided"][0]) for one in results]


def _leaves_numbers_whole(row):
    """Whether weights of one element stay whole: the order of products of numbers is unknown."""
    return row not in INEXACT and (row[1] == "AdamW" or "weight_decay" in row[2])


@_rows(_DLRM)
def test_dlrm(workers, row):
    expected = ("nothing_to_cut", ["not_redundant"]) if row == _WHOLE_DLRM else ("", [])
    whole = _leaves_numbers_whole(row)
    if whole:
        expected = ("", ["not_exact"])
    for _, decided in _trained(workers, row):
        assert (decided["reason"], decided["reasons"]) == expected, decided
        # (Keras 3 makes a whole tensor of a sparse gradient for the norm of all.)
        assert decided["cut"] in ([0] if row == _WHOLE_DLRM else [10 - whole, 13 - whole]), decided


@pytest.mark.parametrize("part", range(bias_sizes.PARTS))
@_rows(_ROWS)
def test_every_size(workers, row, part):
    for sizes in bias_sizes.sizes_of_models(part):
        whole = 1 in sizes and _leaves_numbers_whole(row)
        for found, decided in _trained(workers, row, sizes):
            reasons = ["not_exact"] if whole else []
            assert (decided["reason"], decided["reasons"]) == ("", reasons), decided
            assert decided["cut"] == len(sizes) - whole, decided
            assert found["still"] == [], found
