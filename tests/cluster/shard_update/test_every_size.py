# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the table of docs/weight_update.md says of optimizers, for biases of every size to 4097.

With the option off and on, two workers train a DLRM and 114 biases for forty steps, all sizes among
all optimizers. One process trains all sizes with each optimizer, whole or windows as replicas have
them (`resized`). It is long: TF_FUSE_TEST_UPDATES=all (`make updates UPDATES=all`) runs it.
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
# For a weight they multiply three tensors, or with these options.
_MULTIPLY = [
    ("keras", "AdamW"), ("keras", "Nadam"), ("tf_keras", "Adadelta"), ("tf_keras", "AdamW"),
    ("tf_keras", "Nadam"), ("tf_keras", "RMSprop"), ("tf_keras.legacy", "Nadam"),
]  # fmt: skip
_WHOLE_NUMBERS = [
    row for row in EXACT if row[:2] in _MULTIPLY or {"weight_decay", "use_ema"} & row[2].keys()
]


def _rows(rows):
    return pytest.mark.parametrize("row", rows, ids=lambda row: " ".join([*row[:2], *row[2]]))


@pytest.fixture(scope="module")
def workers():
    with Ranks(["grpc+fuse"] * 2, server=False, patient=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def alone():
    with Ranks(["grpc+fuse"], server=False) as rank:
        yield rank


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
        assert decided["slots"] == decided["sharded"] * slots, decided
        if row in INEXACT:
            assert one["largest"] <= LIMIT, one
        else:
            assert (one["differ"], one["same_losses"], decided["inexact"]) == ([], True, 0), one
    return [(one, one["decided"][0]) for one in results]


def _check_decided(row, decided, numbers, clusters):
    """Check that all updates are sharded, or those of more than one element.

    The order in which Grappler multiplies three numbers is unknown, and one element is a number.
    """
    whole = row in _WHOLE_NUMBERS
    expected = ("", ["not_exact"] if whole else [])
    assert (decided["reason"], decided["reasons"]) == expected, decided
    assert decided["sharded"] in [count - numbers * whole for count in clusters], decided


@_rows(_DLRM)
def test_dlrm(workers, row):
    for _, decided in _trained(workers, row):
        if row == _WHOLE_DLRM:
            found = decided["reason"], decided["reasons"], decided["sharded"]
            assert found == ("nothing_to_shard", ["not_replicated"], 0), decided
        else:
            # (Keras 3 makes a whole tensor of a sparse gradient for the norm of all.)
            _check_decided(row, decided, 1, [10, 13])


@_rows(_ROWS)
def test_every_size(workers, alone, row):
    sizes = bias_sizes.sizes_of_model(_ROWS.index(row))
    for found, decided in _trained(workers, row, sizes):
        _check_decided(row, decided, sizes.count(1), [len(sizes)])
        assert found["still"] == [], found
    _check_all_sizes(alone, row)


def _check_all_sizes(alone, row):
    library, name, options, _ = row
    # (A norm is that of a whole gradient.)
    has_norm = row in INEXACT or any("clipnorm" in option for option in options)
    first = None if has_norm else _ROWS.index(row)
    alone.start("every_size_alone", library=library, name=name, options=options, first=first)
    (found,) = alone.wait(seconds=_SECONDS)
    assert found is not Ended and not isinstance(found, Error), f"{found}\n{alone.log(0)}"
    assert (found["sizes"], found["still"], found["other"]) == (bias_sizes.LAST, 0, []), found
    if row in INEXACT:
        assert found["apart"] <= LIMIT, found
    else:
        assert found["differ"] == [], found
