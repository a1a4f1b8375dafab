# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reports of a running job: of its coordinator, a command, files, and after tasks stopped."""

import json

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_WORKER, _PS0, _PS1 = (
    f"/job:{name}/replica:0/task:{index}" for name, index in (("worker", 0), ("ps", 0), ("ps", 1))
)
_OF_COORDINATOR = [
    [part, "only the coordinator knows them: call tf_fuse.report.write there"]
    for part in ("variables", "weight updates", "placement", "layouts")
]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return coordinator.run(__file__, tmp_path_factory.mktemp("job"))


def test_a_report_by_the_coordinator(cases):
    case = cases["coordinator"]
    assert case["notes"] == []
    assert {_WORKER, _PS0, _PS1} < set(case["tasks"])
    # Each table is read on its server, and its rows come to the worker.
    (function,) = case["functions"]
    assert (function["task"], function["name"]) == (_WORKER, "train")
    sent = [one for one in function["tensors"] if one[0] in ("ps:0", "ps:1")]
    assert sorted({one[2] for one in sent if one[2]}) == [f"table_{i}" for i in range(6)]
    # What goes to a server is named by the variable that it updates there.
    back = [one for one in function["tensors"] if one[0] == "worker:0"]
    assert sorted({one[2] for one in back if one[2]}) == [f"table_{i}" for i in range(6)]


def test_a_recording_has_whole_steps_and_their_paths(cases):
    case = cases["recorded"]
    assert case["steps"] >= 1
    assert case["lanes"] == [_PS0, _PS1, _WORKER]
    assert all(case["busy"])
    for step in case["paths"]:
        assert step["task"] == _WORKER
        begins, ends = zip(*step["path"], strict=True)
        assert begins[0] == step["start_us"] and ends[-1] == step["end_us"]
        assert begins[1:] == ends[:-1]
    # The names lead from the timeline to the tensors of the groups.
    assert case["named"] == 1.0


def test_times_of_tasks_on_one_host_are_of_one_clock(cases):
    case = cases["one_clock"]
    assert case["notes"] == []
    assert case["requests"] > 0
    # No request arrives before it was sent, and no answer before it was given.
    assert case["early"] == []


def test_the_tasks_write_their_reports_into_a_folder(cases):
    case = cases["folder"]
    assert case["files"] == ["chief_0.json", "ps_0.json", "ps_1.json", "worker_0.json"]
    assert case["notes"] == []
    assert {_WORKER, _PS0, _PS1} < set(case["tasks"])
    assert case["functions"] == cases["coordinator"]["functions"]
    assert case["servers"] == [_PS0, _PS1]
    assert case["has_timeline"]


def test_a_command_asks_the_tasks_of_a_running_job(cases):
    case = cases["command"]
    assert (case["status"], case["tasks"]) == (0, [_PS0, _PS1, _WORKER])
    assert case["functions"] == [[_WORKER, cases["coordinator"]["groups"]]]
    assert case["notes"] == _OF_COORDINATOR
    assert case["steps"] >= 1
    assert case["trace"] == ["ps:0", "ps:1", "worker:0"]


def test_a_task_that_does_not_answer_is_named(cases):
    case = cases["stopped"]
    assert [one for one, text in case["notes"] if text.startswith("did not answer: ")] == ["ps:1"]
    recorded = [text for one, text in case["notes"] if one == "timeline"]
    assert any(text.startswith("ps:1 was not recorded: ") for text in recorded)
    assert case["functions"] == 1


@pytest.mark.parametrize(
    ("case", "silent"),
    [("by_target", "ps:1"), ("by_config", "ps:1"), ("first_stopped", "worker:0")],
)
def test_a_command_shows_the_tasks_beside_one_that_is_stopped(cases, case, silent):
    found = cases[case]
    assert found["status"] == 0
    assert found["tasks"] == [_PS0, _PS1, _WORKER]
    assert found["notes"] == [
        [silent, "did not answer: DeadlineExceededError: …"],
        *_OF_COORDINATOR,
    ]
    # What the others have counted and rewritten is there.
    assert [one for one, count in found["counted"] if count] == sorted(
        {"ps:0", "ps:1", "worker:0"} - {silent}
    )
    assert found["functions"] == ([] if silent == "worker:0" else [_WORKER])


def test_a_task_that_ends_while_the_report_waits_for_it_is_named(cases):
    case = cases["ended_meanwhile"]
    assert case["asked"] == "alive"
    (text,) = [text for one, text in case["notes"] if one == "ps:1"]
    assert text.startswith("did not answer: ")
    assert case["functions"] == 1


def test_a_job_that_has_ended_leaves_a_page_that_says_so(cases):
    case = cases["ended"]
    assert case["status"] == 0
    assert "What is missing" in case["page"]
    assert [one for one, text in case["notes"] if text.startswith("did not answer: ")] == [
        "ps:0", "ps:1", "worker:0"
    ]  # fmt: skip


def test_the_folder_keeps_what_ended_tasks_wrote(cases):
    case = cases["after"]
    assert case["functions"] == cases["coordinator"]["functions"]


def _main():
    import os
    import re
    import subprocess
    import sys
    import threading
    from pathlib import Path

    folder = Path(sys.argv[1])
    reports = folder / "reports"
    os.environ["TF_FUSE_REPORT_DIR"] = str(reports)

    import tensorflow as tf

    import tf_fuse
    import tf_fuse.report
    from tf_fuse.cluster import LocalCluster
    from tf_fuse.report.collect import short
    from tf_fuse.report.json_form import read
    from tf_fuse.report.merge import report_of_files
    from tf_fuse.report.steps import plane, recording

    tf.config.optimizer.set_experimental_options(
        {"do_fuse_recv": True, "fuse_weight_update": True, "fuse_grouping": "level"}
    )
    cluster = LocalCluster(workers=1, ps=2)
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    run = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        tables = [tf.Variable(tf.ones([20, 4]), name=f"table_{i}") for i in range(6)]

    @tf.function
    def train():
        ids = tf.random.uniform([8], 0, 20, tf.int32)
        rows = [tf.gather(table, ids) for table in tables]
        gradients = tf.gradients(tf.add_n(rows) ** 2, rows)
        # (Equal gradients would travel once for all tables of a server.)
        for rate, (table, gradient) in enumerate(zip(tables, gradients, strict=True), 1):
            table.scatter_sub(tf.IndexedSlices(0.001 * rate * gradient, ids))
        for table in tables:
            table.assign_sub(0.1 * tf.reduce_mean(rows[0]) * table)

    def meanwhile(action):
        """Run steps while an action runs."""
        ended = threading.Event()

        def steps():
            while not ended.is_set():
                for _ in range(5):
                    run.schedule(train)
                run.join()

        thread = threading.Thread(target=steps)
        thread.start()
        try:
            return action()
        finally:
            ended.set()
            thread.join()

    def summary(report):
        whole = [one for one in report.functions if one.name == "train"]

        def tensors(function):
            return [
                [short(group.sender), short(group.receiver), one.variable]
                for group in function.groups
                for one in group.tensors
            ]

        return {
            "notes": [[one.part, one.text] for one in report.notes],
            "tasks": [one.name for one in report.tasks],
            "groups": [len(one.groups) for one in whole],
            "functions": [
                {"task": one.task, "name": one.name, "tensors": tensors(one)} for one in whole
            ],
        }

    def recorded():
        for seconds in (1.0, 4.0, 16.0):
            timeline = meanwhile(lambda seconds=seconds: tf_fuse.report.record(seconds))
            if timeline is not None and timeline.steps:
                break
        report = tf_fuse.report.write(folder / "recorded.html")
        known = {one.name for f in report.functions for g in f.groups for one in g.tensors}
        names = [name for one in timeline.transfers for name in one.tensors]
        return {
            "steps": len(timeline.steps),
            "lanes": [one.task for one in timeline.lanes],
            "busy": [bool(one.busy) for one in timeline.lanes],
            "named": sum(name in known for name in names) / len(names),
            "paths": [
                {
                    "task": one.task,
                    "start_us": one.start_us,
                    "end_us": one.end_us,
                    "path": [[part.start_us, part.end_us] for part in one.path],
                }
                for one in timeline.steps
            ],
        }

    def one_clock():
        for seconds in (1.0, 4.0, 16.0):
            notes = []
            addresses = recording.cluster_addresses()
            found = meanwhile(
                lambda seconds=seconds, addresses=addresses, notes=notes: recording.profiles_of(
                    addresses, seconds, notes
                )
            )
            events = [one for task, own in found.items() for one in plane.receives(task, own)]
            sent = {
                (one.step_id, one.task, one.peer, one.names): one
                for one in events
                if not one.is_receiver
            }
            pairs = [
                (one, sent[one.step_id, one.peer, one.task, one.names])
                for one in events
                if one.is_receiver and (one.step_id, one.peer, one.task, one.names) in sent
            ]
            if pairs:
                break
        early = [
            [asked.task, asked.start, asked.end, served.start, served.end]
            for asked, served in pairs
            if served.start < asked.start or served.end > asked.end
        ]
        return {"notes": [one.text for one in notes], "requests": len(pairs), "early": early}

    def in_folder():
        def complete():
            report = report_of_files([reports])
            servers = report.server_updates.get("servers", {})
            written = len(list(reports.glob("*.json"))) == 4
            return report if written and len(servers) == 2 and report.timeline else None

        report = coordinator.wait_until(complete)
        return {
            **summary(report),
            "files": sorted(path.name for path in reports.glob("*.json")),
            "servers": sorted(report.server_updates["servers"]),
            "has_timeline": report.timeline is not None,
        }

    def command(*options):
        page = folder / "command.html"
        done = subprocess.run(
            [sys.executable, "-m", "tf_fuse", "report", "--out", str(page), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "TF_FUSE_REPORT_DIR"}
            | {"TF_CONFIG": json.dumps(config)},
        )
        print(done.stdout, flush=True)
        return done.returncode, page, read(page.with_suffix(".json"))

    workers = cluster.cluster_spec["worker"]
    config = {
        "cluster": cluster.cluster_spec | {"chief": [cluster.chief_address]},
        "task": {"type": "chief", "index": 0},
        "rpc_layer": "grpc+fuse",
    }

    def by_command():
        trace = folder / "trace.json"
        for seconds in ("1", "4", "16"):
            status, _, report = meanwhile(
                lambda seconds=seconds: command("--record", seconds, "--trace", str(trace))
            )
            if report.timeline is not None and report.timeline.steps:
                break
        events = json.loads(trace.read_text())["traceEvents"]
        whole = [one for one in report.functions if one.groups]
        return {
            "status": status,
            "tasks": [one.name for one in report.tasks],
            "functions": [[one.task, [len(one.groups)]] for one in whole],
            "notes": [[one.part, one.text] for one in report.notes],
            "steps": len(report.timeline.steps),
            "trace": sorted(one["args"]["name"] for one in events if one["name"] == "process_name"),
        }

    def stopped():
        cluster.stop("ps:1")
        try:
            tf_fuse.report.record(0.5)
            report = tf_fuse.report.write(folder / "stopped.html", timeout_s=2)
        finally:
            cluster.cont("ps:1")
        return {
            "notes": [[one.part, one.text] for one in report.notes],
            "functions": len([one for one in report.functions if one.name == "train"]),
        }

    def command_without(task, *options):
        cluster.stop(task)
        try:
            status, _, report = command("--timeout", "3", *options)
        finally:
            cluster.cont(task)
        return {
            "status": status,
            "tasks": [one.name for one in report.tasks],
            "counted": [[short(one.name), one.counters.get("steps")] for one in report.tasks],
            "functions": sorted({one.task for one in report.functions if one.groups}),
            "notes": [[one.part, re.sub("(Error: ).*", r"\1…", one.text)] for one in report.notes],
        }

    def ended_meanwhile():
        cluster.stop("ps:1")
        found = []

        def write():
            found.append(tf_fuse.report.write(folder / "meanwhile.html", timeout_s=60))

        thread = threading.Thread(target=write)
        thread.start()
        asked = "alive" if thread.is_alive() else "ended"
        cluster.kill("ps:1")
        thread.join()
        (report,) = found
        return {
            "asked": asked,
            "notes": [[one.part, one.text] for one in report.notes],
            "functions": len([one for one in report.functions if one.name == "train"]),
        }

    def ended():
        for task in cluster.tasks:
            cluster.kill(task)
        status, page, report = command("--timeout", "2")
        return {
            "status": status,
            "page": page.read_text(),
            "notes": [[one.part, one.text] for one in report.notes],
        }

    run.schedule(train)
    run.join()
    coordinator.finish(
        {
            "coordinator": lambda: summary(tf_fuse.report.write(folder / "job.html")),
            "recorded": recorded,
            "one_clock": one_clock,
            "folder": in_folder,
            "command": by_command,
            "stopped": stopped,
            "by_target": lambda: command_without("ps:1", "--target", workers[0]),
            "by_config": lambda: command_without("ps:1"),
            "first_stopped": lambda: command_without("worker:0"),
            "ended_meanwhile": ended_meanwhile,
            "ended": ended,
            "after": lambda: summary(report_of_files([reports])),
        }
    )


if __name__ == "__main__":
    _main()
