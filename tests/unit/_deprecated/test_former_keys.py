# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Dicts that still find values by the former names of their keys."""

import copy
import json
import pickle
import warnings

import pytest

from tf_fuse._deprecated.former_keys import FormerKeys

_TEXT = r"^key 'old' is deprecated and goes in 0\.4\.0: use 'new'$"


@pytest.fixture
def found():
    return FormerKeys({"new": 1, "other": 2}, {"old": "new", "gone": "not here"})


@pytest.mark.parametrize(
    "copied", [lambda one: one, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_former_name_finds_the_value_and_warns(found, copied):
    for read in (lambda one: one["old"], lambda one: one.get("old"), lambda one: one.get("old", 7)):
        with pytest.warns(DeprecationWarning, match=_TEXT) as warned:
            assert read(copied(found)) == 1
        assert [one.filename for one in warned] == [__file__]


def test_all_else_is_as_of_a_dict(found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found == {"new": 1, "other": 2}
        assert json.dumps(found) == '{"new": 1, "other": 2}'
        assert "old" not in found
        assert (found["new"], found.get("new"), found.get("none"), found.get("gone", 7)) == (
            1, 1, None, 7,
        )  # fmt: skip
        for key in ("none", "gone"):
            with pytest.raises(KeyError, match=f"^'{key}'$"):
                found[key]


def test_a_key_that_is_there_is_its_own(found):
    found["old"] = 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (found["old"], found.get("old"), found["new"]) == (3, 3, 1)
