# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One update of a group fails: its error, and which variables have changed, are those of stock.

Stock runs the updates of a server in any order, so which of the others were made is not fixed there
either: each of them is made or not, and none in part.
"""

import sys

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow_but

pytestmark = pytest.mark.cluster

_WORKER = "/job:worker/replica:0/task:0"
_TABLES, _ROWS, _WIDTH = 8, 50, 3  # Four tables are on each of two servers.
_IDS = [7, 3, 7, 20, 49, 0]
_PLACE = 3  # of the wrong id
_WRONG = (-1, _ROWS)
# The first table of the first server, one in the middle, and the last one of each server.
_FAILING = (0, 4, 6, 7)
_SCATTERS = {
    "scatter_add": "ResourceScatterAdd",
    "scatter_sub": "ResourceScatterSub",
    "scatter_update": "ResourceScatterUpdate",
}
# They change a table and its slots.
_APPLIES = {
    "Adagrad": "ResourceSparseApplyAdagradV2",
    "Ftrl": "ResourceSparseApplyFtrlV2",
    "Momentum": "ResourceSparseApplyKerasMomentum",
}
_KINDS = _SCATTERS | _APPLIES
# Other kernels change the rows whose ids come before the wrong one.
_LOOKS_AT_ALL_IDS_FIRST = "Adagrad"
# Their operations fail as those beside them do.
_SLOW = ("scatter_sub", "Momentum")
_UPDATES = slow_but(
    [(kind, failing, row) for kind in _KINDS for failing in _FAILING for row in _WRONG],
    lambda one: one[0] not in _SLOW,
)


@pytest.fixture(scope="module")
def cases():
    return coordinator.Cases(__file__, "job", slow=_SLOW)


def _runs(cases, kind, failing, row):
    case = cases[kind]
    assert "raised" not in case, case
    return [case[mode][f"{failing} {row}"] for mode in ("stock", "on")]


@pytest.mark.parametrize("kind", slow_but(_KINDS, lambda kind: kind not in _SLOW))
def test_updates_of_a_server_are_a_group(cases, kind):
    assert cases[kind]["stock"]["groups"] == []
    assert cases[kind]["on"]["groups"] == [{_KINDS[kind]: _TABLES // 2}] * 2


@pytest.mark.parametrize(("kind", "failing", "row"), _UPDATES)
def test_an_error_is_that_of_stock_and_names_the_variable(cases, kind, failing, row):
    text = f"indices[{_PLACE}] = {row} is not in [0, {_ROWS})"
    if kind in ("Adagrad", "Ftrl"):
        text = f"Index {row} at offset {_PLACE} in indices is out of range"
    ends = (text, f"{text} (variable 'table_{failing}')")
    for run, text in zip(_runs(cases, kind, failing, row), ends, strict=True):
        assert run["raised"] == "InvalidArgumentError"
        lines = run["text"].splitlines()
        (place, *_) = [number for number, line in enumerate(lines) if line.endswith(text)]
        assert lines[place + 1].strip() == f"[[{{{{node of_table_{failing}}}}}]]"
        assert f"Detected at node of_table_{failing} defined at" in run["text"]


@pytest.mark.parametrize(("kind", "failing", "row"), _UPDATES)
def test_other_variables_are_changed_as_a_whole_or_not(cases, kind, failing, row):
    for run in _runs(cases, kind, failing, row):
        states = [one for table, one in enumerate(run["states"]) if table != failing]
        assert set(states) <= {"before", "after"}, run["states"]


@pytest.mark.parametrize(("kind", "failing", "row"), _UPDATES)
def test_the_failing_update_leaves_what_it_leaves_in_stock(cases, kind, failing, row):
    stock, ours = _runs(cases, kind, failing, row)
    assert ours["failing"] == stock["failing"]
    expected = "before" if kind == _LOOKS_AT_ALL_IDS_FIRST else "rows before"
    assert [run["states"][failing] for run in (stock, ours)] == [expected] * 2


@pytest.mark.parametrize(("kind", "failing", "row"), _UPDATES)
def test_the_same_step_runs_afterwards(cases, kind, failing, row):
    for run in _runs(cases, kind, failing, row):
        assert run["again"] == ["after"] * _TABLES


def _main():
    import numpy as np
    import tensorflow as tf

    import tf_fuse

    job = coordinator.Job("off", 1, 2)
    raw = tf.raw_ops

    def update(kind, table, slots, gradient, ids, name):
        if kind in _SCATTERS:
            getattr(table, kind)(tf.IndexedSlices(gradient, ids), name=name)
            return
        handles = [one.handle for one in (table, *slots)]
        with tf.device(table.device):
            more = dict(grad=gradient, indices=ids, use_locking=True, name=name)
            if kind == "Adagrad":
                var, accum = handles
                raw.ResourceSparseApplyAdagradV2(
                    var=var, accum=accum, lr=0.1, epsilon=0.001, **more
                )
            elif kind == "Momentum":
                var, accum = handles
                raw.ResourceSparseApplyKerasMomentum(
                    var=var, accum=accum, lr=0.1, momentum=0.9, **more
                )
            else:
                var, accum, linear = handles
                raw.ResourceSparseApplyFtrlV2(
                    var=var, accum=accum, linear=linear, lr=0.1, l1=0.01, l2=0.01,
                    l2_shrinkage=0.01, lr_power=-0.5, **more,
                )  # fmt: skip

    class Case:
        """Tables with their slots, and a step that updates rows of each."""

        def __init__(self, kind):
            rng = np.random.default_rng(1)
            slots = {"Adagrad": 1, "Momentum": 1, "Ftrl": 2}.get(kind, 0)
            # All tables first: the servers take turns.
            made = []
            for which in ("table", "slot", "other_slot")[: 1 + slots]:
                values = rng.uniform(1, 2, [_TABLES, _ROWS, _WIDTH]).astype("float32")
                named = (job.variables([v], name=f"{which}_{i}") for i, v in enumerate(values))
                made.append([variable for (variable,) in named])
            self.tables = list(zip(*made, strict=True))
            self.first = self.values()

            @tf.function(autograph=False)
            def step(ids):
                for i, (of_table, (table, *slots)) in enumerate(
                    zip(tf.unstack(ids), self.tables, strict=True)
                ):
                    change = tf.tanh(tf.cast(of_table, tf.float32))[:, tf.newaxis]
                    gradient = change + tf.ones([_WIDTH]) * (i + 1)
                    update(kind, table, slots, gradient, of_table, f"of_table_{i}")

            self.step = step

        def reset(self):
            for variables, values in zip(self.tables, self.first, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)

        def values(self):
            """By table: it and its slots."""
            return [[one.numpy() for one in variables] for variables in self.tables]

    def state_of(values, known):
        found = coordinator.exact(values)
        return next((name for name, one in known.items() if coordinator.exact(one) == found), "")

    def run(kind, mode):
        on = mode == "on"
        tf.config.optimizer.set_experimental_options({"do_fuse_recv": on, "fuse_grouping": "level"})
        case = Case(kind)
        good = np.asarray([_IDS] * _TABLES, np.int32)

        def after(ids):
            """By table, what each state is."""
            case.reset()
            job.call(case.step, (ids,))
            return case.values()

        changed = after(good)
        report = tf_fuse.cluster_reports()[_WORKER][-1] if on else {}
        groups = [
            one["operations"]
            for one in report.get("operation_groups", [])
            if "/job:ps/" in one["device"]
        ]
        states = [
            {"before": first, "after": last}
            for first, last in zip(case.first, changed, strict=True)
        ]
        found = {"groups": groups}
        for failing in _FAILING:
            for row in _WRONG:
                ids = good.copy()
                ids[failing, _PLACE] = row
                one = coordinator.caught(lambda ids=ids: after(ids))
                seen = case.values()
                # Rows of ids at and after the wrong one are unchanged, if none came before.
                rows_before = [value.copy() for value in changed[failing]]
                late = sorted({*_IDS[_PLACE:]} - {*_IDS[:_PLACE]})
                for value, first in zip(rows_before, case.first[failing], strict=True):
                    value[late] = first[late]
                known = [*map(dict, states)]
                known[failing]["rows before"] = rows_before
                one["states"] = [state_of(*pair) for pair in zip(seen, known, strict=True)]
                one["failing"] = coordinator.exact(seen[failing])
                one["again"] = [state_of(*pair) for pair in zip(after(good), states, strict=True)]
                found[f"{failing} {row}"] = one
        return found

    def compared(kind):
        return {mode: run(kind, mode) for mode in ("stock", "on")}

    coordinator.finish({kind: lambda kind=kind: compared(kind) for kind in _KINDS}, _SLOW)


if __name__ == "__main__":
    assert sys.argv[1] == "job"
    _main()
