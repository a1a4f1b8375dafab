# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reports of several tasks become one, with benchmarks; what cannot be read is named."""

import dataclasses
import json

from tests.unit.report.made_reports import PS, WORKER, whole_report
from tf_fuse.report.gains import gains_in, gains_of
from tf_fuse.report.json_form import as_json
from tf_fuse.report.merge import merge, report_of_files
from tf_fuse.report.records.model import Function, Gain, Left, Measured, Note, Report, Task, Tensor

_OTHER_PS = "/job:ps/replica:0/task:1"
_BENCH = {
    "model": "mlp",
    "optimizer": "adam",
    "settings": {"batch": 64, "workers": 2, "rounds": 3, "verbose": True},
    "modes": {
        "sharded": {
            "step_ms": {"median": 50.0, "min": 40.0, "max": 60.0},
            "collective_bytes_per_step": 1e6,
            "losses": [1.0],
        },
        "stock": {"steps_per_s": {"median": 8.0}, "cpu_ms_per_step": {"worker": 2.0, "ps": 1.5}},
    },
    "machine": {"host": "/root/secret"},
}


def _function(task, variable, name="train"):
    return Function(
        task, name, 0, (), (Left(PS, WORKER, "alone", "", Tensor("a", "b", "c", variable)),)
    )


def _updates(server, worker, updates, mean):
    counts = {"updates": updates, "update_us": 1, "waits": 0, "wait_us": 0, "max_wait_us": 0}
    return {
        "servers": {server: {**counts, "variables": {}}},
        "workers": {
            worker: {
                "updates": updates,
                "mean_staleness": mean,
                "max_staleness": updates,
                "staleness": [[0, 0, updates - 1], [1, 1, 1]],
            }
        },
        "errors": {},
    }


def test_the_newer_report_of_a_task_counts():
    old = Report(made="2026-01-01T00:00:00Z", tasks=(Task(PS, "", {"groups": 1}),), tf_fuse="1")
    new = Report(made="2026-01-02T00:00:00Z", tasks=(Task(PS, "", {"groups": 2}),), tf_fuse="1")
    for one in ([old, new], [new, old]):
        merged = merge(one)
        assert merged.tasks == (Task(PS, "", {"groups": 2}),)
        assert merged.made == "2026-01-02T00:00:00Z"
        assert merged.notes == ()


def test_an_answer_of_earlier_is_better_than_none():
    answer = Report(made="1", tasks=(Task(PS, "", {"groups": 1}),))
    silent = Report(made="2", tasks=(Task(PS, "no answer"), Task(WORKER, "no answer")))
    assert merge([answer, silent]).tasks == (
        Task(PS, "", {"groups": 1}),
        Task(WORKER, "no answer"),
    )


def test_functions_are_taken_of_who_knows_the_variables():
    coordinator = Report(made="1", functions=(_function(WORKER, "table"),))
    worker = Report(made="2", functions=(_function(WORKER, "", ""), _function(PS, "")))
    assert merge([worker, coordinator]).functions == (
        _function(PS, ""),
        _function(WORKER, "table"),
    )


def test_updates_of_servers_are_put_together_and_workers_summed():
    one = Report(made="1", server_updates=_updates(PS, WORKER, 3, 0.5))
    other = Report(made="2", server_updates=_updates(_OTHER_PS, WORKER, 1, 2.5))
    both = merge([one, other]).server_updates
    assert sorted(both["servers"]) == [PS, _OTHER_PS]
    assert both["workers"] == {
        WORKER: {
            "updates": 4,
            "mean_staleness": 1.0,
            "max_staleness": 3,
            "staleness": [[0, 0, 2], [1, 1, 2]],
        }
    }
    # A report of the same server replaces the older one, and its workers with it.
    newer = Report(made="3", server_updates=_updates(PS, WORKER, 5, 0.0))
    assert merge([newer, one]).server_updates == newer.server_updates


def test_several_versions_are_named():
    merged = merge([Report(made="1", tf_fuse="0.2.0"), Report(made="2", tf_fuse="0.3.0")])
    assert merged.notes == (
        Note("tasks", "were written by several versions of tf_fuse: 0.2.0, 0.3.0"),
    )


def test_no_report_is_a_page_that_says_so(tmp_path):
    assert report_of_files([tmp_path / "none.json"]).notes == (
        Note("report", "there is no report that can be read"),
        Note("none.json", "not read: No such file or directory"),
    )
    assert report_of_files([tmp_path]).notes[-1] == Note(
        tmp_path.name, "the folder has no file *.json"
    )


def test_a_folder_with_good_and_bad_files(tmp_path):
    report = whole_report()
    text = json.dumps(as_json(report))
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "b.json").write_text(text[:-9])
    (tmp_path / "c.json").write_text('{"some": "thing"}')
    (tmp_path / "d.json").write_text(json.dumps(_BENCH))
    (tmp_path / "e.txt").write_text("not looked at")
    merged = report_of_files([tmp_path])
    assert merged.functions == report.functions and merged.timeline == report.timeline
    assert [one.title for one in merged.gains] == ["features", "mlp, adam, 2 workers, 64 batch"]
    read = [(one.part, one.text.partition(":")[0]) for one in merged.notes]
    assert read == [("ps:1", "did not answer"), ("b.json", "not read"), ("c.json", "not read")]


def test_a_benchmark_shows_stock_first_and_no_other_fields(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(_BENCH))
    (gain,) = gains_in(path)
    assert gain == Gain(
        "mlp, adam, 2 workers, 64 batch",
        (
            Measured("stock", 8.0, None, None, 3.5),
            Measured("sharded", 20.0, None, 1e6, None),
        ),
    )
    assert "secret" not in json.dumps(dataclasses.asdict(gain))


def test_variants_and_files_that_are_not_benchmarks(tmp_path):
    good, bad, cut = (tmp_path / f"{name}.json" for name in ("fit", "bad", "cut"))
    good.write_text(json.dumps({"variants": {"fit": {"ms_per_step": {"median": 4.0}}}}))
    bad.write_text('{"modes": [1]}')
    cut.write_text('{"modes": {')
    gains, notes = gains_of([good, bad, cut, tmp_path / "none.json"])
    assert gains == [Gain("fit", (Measured("fit", 250.0),))]
    assert [(one.part, one.text.split(" (")[0]) for one in notes] == [
        (
            "bad.json",
            "not read: bad.json: neither a report nor the JSON of a benchmark that runs the same "
            "in several ways",
        ),
        ("cut.json", "not read: cut.json: not JSON, or cut off"),
        ("none.json", "not read: No such file or directory"),
    ]
