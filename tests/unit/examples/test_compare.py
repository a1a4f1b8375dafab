# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variants in turn: their order, and what progress says meanwhile; no process is started here."""

from rich.progress import Progress

from examples import compare
from examples.progress import describe


def test_progress_tells_the_round_that_runs(monkeypatch):
    progress = Progress(disable=True)
    said = []

    class FakeSession:
        def __init__(self, spec, *, env, on_event):
            self.name = spec["name"]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait_ready(self):
            pass

        def run(self, steps):
            said.append(describe(progress))
            return (self.name, steps)

    monkeypatch.setattr(compare, "Session", FakeSession)
    variants = {name: compare.Variant({"name": name}) for name in ("stock", "fused")}
    rounds, _ = compare.run_in_turn(variants, 2, 7, progress)
    assert said == [
        "stock: tracing and warming up 0/14; fused: waiting 0/14",
        "stock: waiting 0/14; fused: tracing and warming up 0/14",
        "stock: running (round 1 of 2) 0/14; fused: waiting 0/14",
        "stock: waiting 7/14; fused: running (round 1 of 2) 0/14",
        "stock: waiting 7/14; fused: running (round 2 of 2) 7/14",
        "stock: running (round 2 of 2) 7/14",
    ]
    assert rounds == {"stock": [("stock", 7)] * 2, "fused": [("fused", 7)] * 2}
    assert [task.description for task in progress.tasks] == ["stock: done", "fused: done"]
