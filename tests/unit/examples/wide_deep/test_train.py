# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training command: wrong input, progress, and rounds joined; no process is started here."""

import contextlib
import json

import pytest
from rich.progress import Progress

from examples.progress import describe
from examples.session import SessionError
from examples.wide_deep import train

_CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"]}


class _FakeSession:
    """Gives a round as `examples.session.Session` would, and keeps what progress said before it."""

    started = 0
    error: str | None = None
    progress = Progress(disable=True)
    said: list[str]  # one line per command

    def __init__(self, spec, *, on_event=None):
        self.spec = spec
        self._on_event = on_event or (lambda event: None)
        self._done = 0
        type(self).started += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_ready(self):
        self.said.append(describe(self.progress))
        if self.error:
            raise SessionError(self.error)
        self._on_event({"event": "ready"})

    def run(self, steps):
        self.said.append(describe(self.progress))
        losses = [1.0 / (self._done + i) for i in range(1, steps + 1)]
        self._done += steps
        event = {
            "event": "round",
            "steps": steps,
            "seconds": steps / 4,
            "losses": losses,
            "cpu_s": {"worker": 0.5 * steps, "ps": 0.25 * steps},
            "recv_rpcs": 3 * steps,
            "steps_per_s": 4.0,
            "recv_rpcs_per_step": 3.0,
            "cpu_ms_per_step": {"worker": 500.0, "ps": 250.0},
        }
        self._on_event(event)
        return event

    def evaluate(self):
        return {"event": "evaluation", "loss": 0.25, "auc": 0.75, "rows": 40}


@pytest.fixture
def session(monkeypatch):
    """The class that stands in for Session."""

    class Fresh(_FakeSession):
        progress = Progress(disable=True)
        said = []  # noqa: RUF012 (a class per test)

    @contextlib.contextmanager
    def display(_console):
        yield Fresh.progress

    monkeypatch.setattr(train, "Session", Fresh)
    monkeypatch.setattr(train, "display", display)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return Fresh


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--rows 0", "--rows must be at least 1, got 0"),
        ("--batch 0", "--batch must be at least 1, got 0"),
        ("--steps -1", "--steps must be at least 1, got -1"),
        ("--workers 0", "--workers must be at least 1, got 0"),
        ("--ps 0", "--ps must be at least 1, got 0"),
        ("--seed -1", "--seed must be at least 0, got -1"),
    ],
)
def test_wrong_flags(arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        train.main(arguments.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {text}")


@pytest.mark.parametrize(
    ("arguments", "need"),
    [
        ("--mode local --batch 128", "0 batches of 128; 1 worker(s)"),
        ("--mode local --batch 128 --workers 3", "0 batches of 128; 1 worker(s)"),
        ("--mode fused --batch 40 --workers 3", "2 batches of 40; 3 worker(s)"),
        # One at a time, the batches are those of one process, whichever worker takes one.
        ("--mode stock --batch 128 --workers 3 --synchronous", "0 batches of 128; 1 worker(s)"),
    ],
)
def test_too_few_rows(session, arguments, need, capsys):
    assert train.main(["--rows", "100", *arguments.split()]) == 1
    assert capsys.readouterr().err == (
        f"error: the training data (synthetic, 100 rows) has 80 rows, that is {need} need one "
        "each: take a smaller batch or more rows\n"
    )
    assert session.started == 0


def test_too_few_rows_for_the_cluster_of_tf_config(session, monkeypatch, capsys):
    config = {"cluster": _CLUSTER, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert train.main(["--mode", "cluster", "--rows", "100", "--batch", "50"]) == 1
    assert capsys.readouterr().err == (
        "error: the training data (synthetic, 100 rows) has 80 rows, that is 1 batches of 50; 2 "
        "worker(s) need one each: take a smaller batch or more rows\n"
    )


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{", "error: TF_CONFIG is not JSON: "),
        (
            json.dumps({"cluster": _CLUSTER, "task": {"type": "worker", "index": 1}}),
            "error: training needs a cluster with the jobs chief, ps and worker, and this process "
            "as its chief; TF_CONFIG has the jobs chief, ps, worker and the task worker:1\n",
        ),
        (
            json.dumps({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}),
            "error: training needs a cluster with the jobs chief, ps and worker, and this process "
            "as its chief; TF_CONFIG has the jobs chief and the task chief:0\n",
        ),
    ],
)
def test_wrong_tf_config(session, monkeypatch, config, text, capsys):
    monkeypatch.setenv("TF_CONFIG", config)
    assert train.main(["--mode", "cluster"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(text)
    assert error.count("\n") == 1
    assert session.said == []
    assert describe(session.progress) == ""  # before anything is encoded


def test_cluster_mode_needs_tf_config(session, capsys):
    assert train.main(["--mode", "cluster"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: TF_CONFIG is not set; expected something like ")
    assert error.count("\n") == 1


def test_work_dir_that_is_none(session, tmp_path, capsys):
    missing = tmp_path / "none"
    assert train.main(["--work-dir", str(missing)]) == 1
    path = missing / "criteo-train.bin"
    assert capsys.readouterr().err == f"error: [Errno 2] No such file or directory: '{path}'\n"


def test_failed_process_is_told_without_this_ones_traceback(session, capsys):
    session.error = "mode fused failed (exit status 1): ImportError: no library\nits traceback"
    assert train.main(["--rows", "600"]) == 1
    assert capsys.readouterr().err == f"error: {session.error}\n"


def test_progress_shows_the_running_loss(session, capsys):
    assert train.main(["--rows", "600", "--batch", "32", "--steps", "45"]) == 0
    first_line, *lines = session.said
    assert first_line == "starting processes 0/45"
    assert len(lines) == 23  # two steps each, and one
    assert lines[:3] == [
        "training 0/45",
        "training, loss 0.7500 2/45",  # the mean of 1 and 1/2
        "training, loss 0.2917 4/45",
    ]
    assert lines[-1] == "training, loss 0.0230 44/45"
    assert describe(session.progress) == ""
    assert capsys.readouterr().out == (
        "steps/s      4.0\n"
        "loss         first 1.000000, last 0.022222\n"
        "evaluation   loss 0.250000, AUC 0.750000, 40 rows\n"
    )


def test_many_steps_are_shown_in_short_parts(session):
    assert train.main(["--rows", "600", "--batch", "32", "--steps", "5000"]) == 0
    assert len(session.said) == 1 + 5000 // 50


def test_parts_are_joined_to_one_round(session, tmp_path):
    data = train.prepare("criteo", tmp_path, rows=600)
    events = []
    shown = train.train_session(
        "fused", "criteo", data, 45, batch=32, on_event=lambda e: events.append(e["event"])
    )
    silent = train.train_session("fused", "criteo", data, 45, batch=32)
    assert events == ["ready"] + ["round"] * 23
    assert len(session.said) == 1 + 23 + 1 + 1  # without a listener, one round
    assert shown == silent
    assert shown["losses"] == [1.0 / i for i in range(1, 46)]
    assert shown["evaluation"]["auc"] == 0.75


def test_rounds_that_count_no_receives_are_joined(session, monkeypatch, tmp_path):
    def run(self, steps, counted=session.run):
        return {**counted(self, steps), "recv_rpcs": None, "recv_rpcs_per_step": None}

    monkeypatch.setattr(session, "run", run)
    data = train.prepare("criteo", tmp_path, rows=600)
    shown = train.train_session("stock", "criteo", data, 4, batch=32, on_event=lambda e: None)
    assert (shown["recv_rpcs"], shown["recv_rpcs_per_step"]) == (None, None)
    assert shown["steps"] == 4


def test_result_goes_to_a_new_folder(session, tmp_path):
    out = tmp_path / "new" / "out.json"
    assert train.main(["--rows", "600", "--batch", "32", "--steps", "4", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["steps"] == 4
