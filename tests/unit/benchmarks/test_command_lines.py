# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Command lines and progress of the benchmarks: no process is started here."""

import io
import threading

import pytest
from rich.console import Console

from benchmarks.fuse_recv import frame_paths, large_tensors
from benchmarks.fuse_recv import run as fuse_recv
from examples import job
from examples.progress import display


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("TF_FUSE_DATA", raising=False)


@pytest.mark.parametrize(
    ("workload", "options", "workers", "ps"),
    [
        ("features", {"batch": 64, "seed": 1, "features": 300}, 1, 2),
        ("dense", {"batch": 64, "seed": 1}, 1, 2),
        ("mixed", {"batch": 64, "seed": 1, "features": 60}, 1, 2),
        # The setting of the RFC: five workers to one server, batch 128.
        ("rfc", {"batch": 128, "seed": 1, "embeddings": 40}, 5, 1),
        ("nothing", {"batch": 64, "seed": 1}, 1, 1),
    ],
)
def test_defaults(workload, options, workers, ps, tmp_path):
    args = fuse_recv.parse(["--workload", workload])
    spec = fuse_recv.specification(args, str(tmp_path))
    assert spec == {
        "workload": workload,
        "options": options,
        "workers": workers,
        "ps": ps,
        "synchronous": False,
    }
    assert job.make_workload(spec).name == workload  # every option is one the workload has


def test_flags_go_before_the_defaults(tmp_path):
    flags = {"features": 7, "workers": 2, "ps": 3, "batch": 16, "steps": 4, "rounds": 9}
    given = [text for key, value in flags.items() for text in (f"--{key}", str(value))]
    args = fuse_recv.parse(["--workload", "rfc", "--synchronous", *given])
    assert fuse_recv.specification(args, str(tmp_path)) == {
        "workload": "rfc",
        "options": {"batch": 16, "seed": 1, "embeddings": 7},
        "workers": 2,
        "ps": 3,
        "synchronous": True,
    }
    assert (args.steps, args.rounds) == (4, 9)


def test_features_of_a_workload_without_them(tmp_path, capsys):
    # One command line for all workloads, with --features 300 in it.
    args = fuse_recv.parse(["--workload", "nothing", "--features", "300"])
    assert "the workload nothing has no --features; 300 is not used" in capsys.readouterr().err
    assert "features" not in fuse_recv.specification(args, str(tmp_path))["options"]


def test_one_grouping_is_that_of_the_mode_fused():
    args = fuse_recv.parse(["--grouping", "cost"])
    assert args.modes == ["stock", "fused", "local"]
    assert fuse_recv.variant(args, "stock") == {"mode": "stock"}
    assert fuse_recv.variant(args, "fused") == {
        "mode": "fused",
        "fuse_options": {"fuse_grouping": "cost"},
    }
    # What is set is set: without --grouping the default is the library's.
    assert fuse_recv.variant(fuse_recv.parse([]), "fused") == {"mode": "fused"}


def test_several_groupings_are_modes_in_place_of_fused():
    args = fuse_recv.parse(["--grouping", "level,consumer,cost", "--modes", "stock", "fused"])
    assert args.modes == ["stock", "level", "consumer", "cost"]
    assert [fuse_recv.variant(args, mode) for mode in args.modes] == [
        {"mode": "stock"},
        {"mode": "fused", "fuse_options": {"fuse_grouping": "level"}},
        {"mode": "fused", "fuse_options": {"fuse_grouping": "consumer"}},
        {"mode": "fused", "fuse_options": {"fuse_grouping": "cost"}},
    ]


def test_unknown_grouping(capsys):
    with pytest.raises(SystemExit):
        fuse_recv.parse(["--grouping", "level,depth"])
    assert "--grouping takes level, consumer, cost, dynamic; got 'depth'" in capsys.readouterr().err


def test_rfc_splits_its_variables(tmp_path):
    args = fuse_recv.parse(["--workload", "rfc"])
    workload = job.make_workload(fuse_recv.specification(args, str(tmp_path)))
    assert workload.shards == 2
    assert workload.partitioner() is not None


def test_data_folder_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_FUSE_DATA", str(tmp_path))
    args = fuse_recv.parse(["--workload", "adult"])
    assert args.data == tmp_path / "adult" / "adult.data"
    assert fuse_recv.parse(["--workload", "rfc"]).data is None


@pytest.mark.parametrize(
    ("parse", "arguments", "text"),
    [
        (fuse_recv.parse, "--rounds 0", "--rounds must be at least 1, got 0"),
        (fuse_recv.parse, "--workers -1", "--workers must be at least 1, got -1"),
        (fuse_recv.parse, "--data x", "--data is for the workload adult, not for features"),
        (large_tensors.parse, "--tensors 1", "--tensors must be at least 2, got 1"),
        (large_tensors.parse, "--sizes-kib 4 0", "--sizes-kib must be at least 1, got 0"),
        (frame_paths.parse, "--tensors 1", "--tensors must be at least 2, got 1"),
        (frame_paths.parse, "--sizes-kib 4 0", "--sizes-kib must hold 16 numbers, got 0"),
    ],
)
def test_wrong_flags(parse, arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(arguments.split())
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_missing_data_file_is_one_line(tmp_path, capsys):
    missing = tmp_path / "none.data"
    assert fuse_recv.main(["--workload", "adult", "--data", str(missing)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(missing) in error
    assert "Traceback" not in error


def _result(losses_equal=True):
    def mode(rate, rpcs, worker, ps):
        return {
            "steps_per_s": {"median": rate, "min": rate - 1, "max": rate + 2},
            "recv_rpcs_per_step": rpcs,
            "cpu_ms_per_step": {"worker": worker, "ps": ps},
            "losses": [1.0, 0.5],
        }

    return {
        "workload": "features",
        "settings": {
            "features": 3,
            "workers": 1,
            "ps": 2,
            "batch": 64,
            "steps": 60,
            "rounds": 5,
            "seed": 1,
        },
        "modes": {"stock": mode(10.0, 905.0, 70.0, 80.0), "fused": mode(40.0, 10.0, 11.0, 15.0)},
        "speedup": 4.0,
        "speedup_by_round": {"median": 4.0, "min": 3.5, "max": 4.5},
        "rpc_reduction": 1 - 10 / 905,
        "losses_equal": losses_equal,
        "max_loss_difference": {"fused": 0.0 if losses_equal else 0.25},
    }


def test_unequal_losses_fail_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fuse_recv, "measure", lambda *_: _result(losses_equal=False))
    out = tmp_path / "new" / "out.json"
    assert fuse_recv.main(["--json", str(out)]) == 1
    assert capsys.readouterr().err == "error: the losses of stock and fused differ\n"
    assert out.exists()  # the evidence is kept
    monkeypatch.setattr(fuse_recv, "measure", lambda *_: _result())
    assert fuse_recv.main([]) == 0


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "rates.png"
    fuse_recv.plot(_result(), path)
    assert path.read_bytes().startswith(b"\x89PNG")


class _Notifying(io.StringIO):
    """A file that tells when a line has arrived."""

    def __init__(self):
        super().__init__()
        self.line = threading.Event()

    def write(self, text):
        written = super().write(text)
        if "\n" in text:
            self.line.set()
        return written


def test_progress_is_not_silent_in_a_file():
    out = _Notifying()
    with display(Console(file=out, width=80), interval_s=0.001) as progress:
        progress.add_task("counting", total=10, completed=3)
        assert out.line.wait(timeout=60)
    assert out.getvalue().splitlines()[0].endswith(" s  counting 3/10")
