# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The figures by which updates are weighed: pinned, measured, and told to other replicas."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_fuse.shard_update import cost_figures as costs
from tf_fuse.shard_update.cost_figures import (
    DEFAULTS,
    NAMES,
    UpdateCosts,
    pinned,
    told,
    within_range,
)
from tf_fuse.shard_update.cost_model import update_measurement
from tf_fuse.shard_update.cost_model.profit import profit
from tf_fuse.shard_update.cost_model.update_measurement import Measured, of_replica
from tf_fuse.shard_update.plan import Bucket, UpdateCluster

_TASK = "/job:worker/replica:0/task:0"
_ALL = (
    "operation_ns_per_byte=0.08,wire_ns_per_byte=0.15,gradient_us=30.0,collective_us=500.0,"
    "share_us=200.0"
)
_FIGURES = st.floats(0, 1e6)


def test_some_figures_are_pinned(monkeypatch):
    monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", " wire_ns_per_byte = 2, gradient_us=1e1 ")
    assert pinned(_TASK) == UpdateCosts(
        wire_ns_per_byte=2.0, gradient_us=10.0, origin=f"TF_FUSE_UPDATE_COSTS of {_TASK}"
    )


def test_the_default_ones_are_pinned(monkeypatch):
    monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", "default")
    assert pinned(_TASK).text() == DEFAULTS.text() == _ALL


@pytest.mark.parametrize("text", [None, "", "  "])
def test_nothing_is_pinned(monkeypatch, text):
    if text is None:
        monkeypatch.delenv("TF_FUSE_UPDATE_COSTS", raising=False)
    else:
        monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", text)
    assert pinned(_TASK) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fast", f"'fast' is not NAME=NUMBER with a NAME of {', '.join(NAMES)}"),
        ("origin=1", f"'origin=1' is not NAME=NUMBER with a NAME of {', '.join(NAMES)}"),
        ("share_us=1,", f"'' is not NAME=NUMBER with a NAME of {', '.join(NAMES)}"),
        ("share_us=1,share_us=1", "share_us is there twice"),
        ("share_us=", "share_us is a number from 0 to 1e+06, got ''"),
        ("share_us=1=2", "share_us is a number from 0 to 1e+06, got '1=2'"),
        ("share_us=-1", "share_us is a number from 0 to 1e+06, got '-1'"),
        ("share_us=1e7", "share_us is a number from 0 to 1e+06, got '1e7'"),
        ("share_us=inf", "share_us is a number from 0 to 1e+06, got 'inf'"),
        ("share_us=nan", "share_us is a number from 0 to 1e+06, got 'nan'"),
    ],
)
def test_what_is_no_figure_is_an_error(monkeypatch, text, why):
    monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", text)
    with pytest.raises(ValueError, match="TF_FUSE_UPDATE_COSTS") as caught:
        pinned(_TASK)
    assert str(caught.value) == (
        f"tf_fuse: TF_FUSE_UPDATE_COSTS={text!r} of {_TASK} cannot be used: {why}. Set it to "
        "figures as 'operation_ns_per_byte=0.08,wire_ns_per_byte=0.15', or to 'default', or unset "
        "it, in all processes"
    )


@given(st.tuples(*[_FIGURES] * len(NAMES)), st.sampled_from(["", "measured by a task"]))
def test_what_is_told_is_what_is_heard(figures, origin):
    one = UpdateCosts(*figures, origin=origin)
    assert told(one.word()) == one


@given(st.text(max_size=60) | st.text("=,0123456789.eshar_u\n", max_size=60))
def test_other_words_are_errors(word):
    with pytest.raises(ValueError, match=r"NAME|does not have all of"):
        told(word)


def test_a_word_must_have_all_figures():
    with pytest.raises(ValueError, match=r"^'share_us=1' does not have all of operation_ns_per_b"):
        told("share_us=1\nsomeone")
    assert told(f"{_ALL}\nsome\tone {'x' * 1000}").origin == f"some one {'x' * 291}"


def test_a_measurement_is_rounded():
    found = of_replica(Measured(0.0712345, 9.87654, 2), 2, _TASK)
    assert (found.operation_ns_per_byte, found.gradient_us) == (0.0712, 39.5)
    assert str(found) == (
        "operation_ns_per_byte=0.0712, wire_ns_per_byte=0.134, gradient_us=39.5, "
        f"collective_us=500, share_us=200 (measured by {_TASK})"
    )


def test_a_measurement_that_cannot_be_believed_is_not():
    found = within_range({"operation_ns_per_byte": 9.0, "gradient_us": 0.25}, "measured")
    assert found == UpdateCosts(
        operation_ns_per_byte=0.32,
        gradient_us=7.5,
        origin="measured; operation_ns_per_byte was 9; gradient_us was 0.25",
    )


@given(st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1e30) | st.just(float("inf"))))
def test_measured_figures_are_near_the_default_ones(measured):
    found = within_range(measured, "").figures()
    for name, default in DEFAULTS.figures().items():
        assert default / costs.RANGE <= found[name] <= default * costs.RANGE
        assert name in measured or found[name] == default


def test_replicas_share_the_cores_of_their_machine():
    def of(cores, beside):
        found = of_replica(Measured(0.08, 7.5, cores), beside, _TASK)
        assert found.wire_ns_per_byte == pytest.approx(found.operation_ns_per_byte * 15 / 8)
        assert (found.collective_us, found.share_us) == (500.0, 200.0)
        assert found.origin == f"measured by {_TASK}"
        return found.operation_ns_per_byte, found.gradient_us

    assert of(2, 2) == (0.08, 30.0)
    # Each has half a core.
    assert of(2, 4) == (0.16, 60.0)
    # One operation has the time of one thread, however many there are.
    assert of(4, 2) == (0.04, 30.0)
    assert of(8, 2) == of(64, 2) == of(64, 1) == (0.02, 30.0)


@pytest.fixture
def clocks(monkeypatch):
    """Those that the measurement looks at."""
    clocks = _Clocks()
    monkeypatch.setattr(update_measurement.time, "perf_counter", lambda: clocks.now)
    monkeypatch.setattr(update_measurement.time, "thread_time", lambda: clocks.computed)
    return clocks


class _Clocks:
    """They go on when the test lets them."""

    now = computed = 0.0

    def compute(self, seconds):
        self.now += seconds
        self.computed += seconds

    def wait(self, seconds):
        self.now += seconds


def test_a_try_that_others_disturb_does_not_count(clocks):
    seconds = iter([0.25, 0.125, 0.5])
    assert update_measurement._best(lambda: clocks.compute(next(seconds))) == 0.125


def test_what_others_compute_does_not_count(clocks):
    def work():
        clocks.compute(0.125)
        clocks.wait(1.0)

    assert update_measurement._best(work) == 0.125
    # (A busy machine is not measured for long.)
    assert clocks.now == 3 * 1.125


def test_tries_end_with_the_time_for_them(clocks, monkeypatch):
    monkeypatch.setattr(update_measurement, "_LIMIT_S", 5.0)
    update_measurement._best(lambda: clocks.compute(1.0))
    # The last one began in time.
    assert clocks.now == 6.0
    clocks.now = 0.0
    update_measurement._best(lambda: clocks.compute(0.125))
    assert clocks.now == 9 * 0.125


def test_this_machine_is_measured_once():
    update_measurement._measure.cache_clear()
    one = update_measurement.costs_here(2, _TASK)
    assert update_measurement._measure.cache_info().misses == 1
    assert update_measurement.costs_here(2, _TASK) == one
    assert update_measurement._measure.cache_info().misses == 1
    found = update_measurement._measure()
    assert found.ns_per_byte > 0
    assert found.call_us > 0
    assert found.cores == len(os.sched_getaffinity(0))


# --- What is decided by them ---------------------------------------------------------------------


def _bucket(elements, passes, gradients):
    clusters, shapes = [], {}
    for i in range(gradients):
        members = [f"gradient_{i}", *(f"node_{i}_{j}:z:0" for j in range(passes))]
        shapes.update(dict.fromkeys(members, (elements,)))
        clusters.append(
            UpdateCluster(members[0], (elements,), members=set(members), sinks=["assign"])
        )
    return Bucket("reduce", [f.root for f in clusters], clusters), shapes


_BUCKETS = st.builds(_bucket, st.integers(1, 10**8), st.integers(0, 30), st.integers(1, 50))
_GROUPS = st.sampled_from([(2, 1), (3, 1), (4, 1), (4, 2), (8, 1), (8, 4)])
_SOME = st.builds(UpdateCosts, *[st.floats(0, 1e3)] * len(NAMES))
_MORE = st.floats(0, 1e3)


@pytest.mark.parametrize("name", NAMES)
@given(_BUCKETS, _GROUPS, _SOME, _MORE)
def test_what_costs_more_never_makes_more_be_sharded(name, bucket, groups, before, more):
    after = UpdateCosts(**{**before.figures(), name: getattr(before, name) + more})
    one, other = (profit(*bucket, 4, *groups, costs=costs) for costs in (before, after))
    if name == "operation_ns_per_byte":
        # A slower update is worth more to save.
        assert other.saved >= one.saved
        assert other.cost == one.cost
        assert bool(other) >= bool(one)
    else:
        assert other.saved == one.saved
        assert other.cost >= one.cost
        assert bool(other) <= bool(one)


@pytest.mark.parametrize("passes", range(9))
@pytest.mark.parametrize("groups", [(2, 1), (4, 1), (4, 2)])
def test_a_slower_machine_never_makes_less_be_sharded(passes, groups):
    bucket = _bucket(4_000_000, passes, 3)
    decided = []
    for step in range(60):
        # As measured, its copies are slower, too. (What a call takes is another figure.)
        costs = of_replica(Measured(0.005 * 1.1**step, 7.5, 2), 2, _TASK)
        decided.append(bool(profit(*bucket, 4, *groups, costs=costs)))
    assert decided == sorted(decided)
    # Between two replicas, fewer passes take less time than the copies, on any machine.
    assert any(decided) == (groups != (2, 1) or passes >= 2)
