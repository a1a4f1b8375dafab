# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates on parameter servers are one operation each, with the values of stock ones."""

import itertools
import re
from pathlib import Path

import pytest

from tests.cluster.parameter_server.fused_update_cases import GRADIENTS, SLOW, names
from tests.fault import coordinator
from tests.slow_cases import slow, slow_but

# (Many cases in one process, which others may be beside.)
SECONDS = 890
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(SECONDS + 10)]
_SCRIPT = str(Path(__file__).with_name("fused_update_cases.py"))

# Where something else than single assignments is left, why.
_LEFT = {
    ("tf_keras Nadam", "dense"): {"device"},
    ("tf_keras Nadam", "sparse"): {"device"},
}


@pytest.fixture(scope="module")
def cases():
    return coordinator.Cases(_SCRIPT, "job", slow=SLOW, seconds=SECONDS)


@pytest.mark.parametrize(
    ("name", "gradient"),
    slow_but(itertools.product(names(), GRADIENTS), lambda one: " ".join(one) not in SLOW),
)
def test_values_are_those_of_stock(cases, name, gradient):
    case = cases[f"{name} {gradient}"]
    assert case["ulps"] == 0, case
    assert case["grouped"] >= 4, case
    assert set(case["left"]) - {"too_few"} == _LEFT.get((name, gradient), set())


@pytest.mark.parametrize(
    "name", slow_but(["Adadelta", "Adagrad", "RMSprop", "RMSprop centered"], "Adagrad".__eq__)
)
def test_rows_that_keras_divides_by_a_table(cases, name):
    """Its conditional stands between the slot's update and the weight's."""
    case = cases[f"keras {name} sparse"]
    assert case["fused"] == 6  # five weights and the counter of steps
    assert case["left"] == []


@pytest.mark.parametrize("name", ["accumulation", "overwriting"])
def test_keras_cannot_update_in_a_branch(cases, name):
    # (When this fails, Keras can, and the docs are out of date.)
    stock, ours = cases[name]
    for text in (stock, ours):
        assert "`merge_call` called while defining a new graph or a tf.function" in text


@pytest.mark.parametrize("name", ["Adagrad", slow("RMSprop")])
def test_zeros_in_a_slot(cases, name):
    """All rows without a gradient get a NaN: the slot, and so the divisor, is zero there."""
    case = cases[f"{name} with zeros"]
    assert case["same"] and case["nan_rows"] == 40 - 8 and case["fused"] == 6


@pytest.mark.parametrize("case", ["nested", "returns nothing", "without fused receives"])
def test_other_steps(cases, case):
    assert cases[case]["ulps"] == 0
    assert cases[case]["fused"] == 6  # five weights and the counter of steps
    assert cases[case]["left"] == []


@pytest.mark.parametrize(
    ("name", "counters"), [slow("Adam dense", 3), ("Adam sparse", 3), ("Adagrad sparse", 1)]
)
def test_several_steps_in_one_function(cases, name, counters):
    """Each step's updates are operations of their own; only Adam reads its counter in between."""
    case = cases[f"{name}, several steps"]
    assert (case["ulps"], case["fused"], case["left"]) == (0, 3 * 5 + counters, [])


def test_variables_of_two_servers_that_are_made_of_each_other(cases):
    """Each is updated where it is; their assignments are on no device of their own."""
    assert cases["two servers"]["servers"] == [0, 1]
    assert cases["two servers"]["ours"] == cases["two servers"]["stock"]
    assert cases["two servers"]["fused"] == [1, 1, 1, 1]


def test_sums_of_what_is_computed_from_a_rate(cases):
    """TensorFlow adds three tensors in an order that depends on who else reads them."""
    assert cases["sums"]["ours"] == cases["sums"]["stock"]


@pytest.mark.parametrize("name", ["passed variables", "variables passed on"])
def test_variables_that_are_arguments_are_updated_where_they_are(cases, name):
    """One trace, called with variables of one server, of the other one, and of both."""
    assert cases[name]["ours"] == cases[name]["stock"]
    assert cases[name]["fused"] == [1, 1, 2]


def test_option_off_changes_nothing(cases):
    assert cases["off"] == {"decided": 0, "rewritten": []}


def test_nothing_is_said_of_replicas(cases):
    assert cases["on by default"] == {"fused": 6, "left": [], "said": []}


def test_locks_of_operations_of_tensorflow(cases):
    """Those that do a whole update are used unchanged, but for their locks."""
    assert cases["locks"] == {"before": [False] * 5, "after": [True] * 5}


def test_report(cases):
    function, lines = cases["report"]["function"], cases["report"]["lines"]
    assert lines[0].endswith(": 6 updates, of 16 variables, in one operation each (fused)")
    assert len(lines) == 1 + 6
    assert all(re.search(r"/device:CPU:0, of \d+ operations(;|$)", line) for line in lines[1:])
    assert sum(one["operations"] for one in function["each"]) == 81
    table = next(one for one in function["each"] if one["elements"] == 40 * 32)
    assert table["exact"] and not table["by_row"]
    assert table["device"].startswith("/job:ps/replica:0/task:")
    assert sum(len(one["variables"]) for one in function["each"]) == 3 * 5 + 1
    assert cases["report"]["counted"] == {"updates_fused": 6, "assignments_left": 0}


def test_bits_on_demand(cases):
    assert cases["exact"]["ulps"] == 0
    assert cases["exact"]["exact"] == [True] * cases["exact"]["fused"]
    assert "too_small" in cases["exact"]["left"]


def test_bits_of_two_updates_of_a_step_on_demand(cases):
    assert all(cases["exact twice"]["same"])
    assert cases["exact twice"]["fused"] == 1


def test_bits_of_clipped_updates_on_demand(cases):
    """Where the documentation says that last bits differ, they do not with the option."""
    assert cases["exact clipnorm"]["ulps"] == 0


def test_rows_on_demand(cases):
    """Slot and weight are two updates then, as far as they are one operation each."""
    assert cases["exact rows"]["ulps"] == 0
    assert cases["exact rows"]["exact"] == [True] * 5
    assert cases["exact rows"]["left"] == ["too_few", "too_small"]


def test_error_of_a_rewritten_function_reads_like_that_of_its_original(cases):
    assert cases["error"]["fused"] == 1
    assert cases["error"]["text"].startswith("Graph execution error:")
    assert "in_inverse" in cases["error"]["text"]
    assert "__tf_fuse" not in cases["error"]["text"]
