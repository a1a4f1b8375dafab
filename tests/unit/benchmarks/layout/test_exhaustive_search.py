# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The count through all choices, with which the other tests compare searches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.unit.layout.optimize.problems import problem, simple
from tests.unit.layout.optimize.search_checks import GRAPHS, SEEDS
from tf_fuse.layout import LayoutError
from tf_fuse.layout.optimize.round_problem import tables_of


def test_too_much_for_brute_force():
    with pytest.raises(LayoutError) as caught:
        exhaustive_search.best(tables_of(simple([[1] * 10] * 7)))
    assert str(caught.value) == (
        "there are 10000000 choices, and brute force takes 2000000 at most; take a smaller "
        "problem, or search"
    )


@given(seed=SEEDS, graph=st.sampled_from(GRAPHS), above=st.integers(-1, 3))
@settings(max_examples=60, deadline=None)
def test_the_cheapest_below_a_ceiling(seed, graph, above):
    tables = tables_of(problem(seed, graph, infinite=0.2))
    best = exhaustive_search.best(tables)
    ceiling = 20 if best is None else best[0] + above
    wanted = None if best is None or above < 0 else best[0]
    assert exhaustive_search.cheapest(tables, ceiling) == wanted


def test_too_many_below_a_ceiling(monkeypatch):
    tables = tables_of(simple([[1] * 3] * 3))
    assert exhaustive_search.cheapest(tables, 3) == 3
    monkeypatch.setattr(exhaustive_search, "_MAX_NUMBERS", 26 * 3)
    assert exhaustive_search.cheapest(tables, 3) is None
