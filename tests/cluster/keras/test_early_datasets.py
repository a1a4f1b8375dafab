# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit` takes a dataset that was made before the strategy, or says why it cannot."""

import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster

_TEXT = (
    "the data reads a generator, a table or a variable that is older than the "
    "ParameterServerStrategy, which has given this process's devices other names: make both after "
    "the strategy"
)


@pytest.fixture(scope="module")
def cases():
    found = scripted.run(Path(__file__).with_name("early_datasets.py"), {}, dict(os.environ))
    return {case["case"]: case for case in found}


@pytest.mark.parametrize("kind", ["shuffled", "parts"])
def test_an_early_dataset_gives_what_a_late_one_gives(cases, kind):
    assert cases[kind]["early"] == cases[kind]["late"]
    assert len(cases[kind]["late"]["values"]) == 4


@pytest.mark.parametrize("kind", ["generated", "looked_up"])
def test_what_stays_on_the_old_device_is_named_with_its_remedy(cases, kind):
    assert cases[kind]["early"] == {"error": _TEXT}
    assert len(cases[kind]["late"]["values"]) == 4
