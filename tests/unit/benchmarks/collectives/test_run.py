# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of benchmarks/collectives, and what is left out where gloo is missing."""

import io
import signal
import sys

import pytest
from rich.console import Console

from benchmarks.collectives import run as collectives


def test_a_variant_of_ours_for_each_path(monkeypatch):
    monkeypatch.setenv("TF_FUSE_COLLECTIVE_PATHS", "tcp")
    args = collectives.parse(["--paths", "shm,grpc"])
    args.gloo_python = "python-with-torch"
    made = collectives.variants(args)
    assert [(v.name, v.backend, v.protocol, v.python) for v in made] == [
        ("stock", "tensorflow", "grpc", sys.executable),
        ("tf_fuse", "tensorflow", "grpc+fuse", sys.executable),
        ("tf_fuse[grpc]", "tensorflow", "grpc+fuse", sys.executable),
        ("gloo", "gloo", "grpc", "python-with-torch"),
    ]
    # What the user's shell has set does not hide behind the names.
    found = [v.env().get("TF_FUSE_COLLECTIVE_PATHS") for v in made]
    assert found == [None, None, "grpc", None]


def test_memory_grows_with_all_that_hold_tensors():
    # Two ranks: 2.5 tensors in each of three variants, and three more in the one that runs.
    assert collectives.memory_needed(1 << 20, 2, 3, 1) == 2 * 10.5 * (1 << 20)
    assert collectives.memory_needed(1 << 20, 2, 3, 4) == 2 * 15 * (1 << 20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_is_enough(number):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    cleaned = []
    with pytest.raises(KeyboardInterrupt), collectives.interrupted_once():
        try:
            signal.raise_signal(number)
        finally:
            # The next ones do not stop the cleaning.
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(number)
    assert cleaned == [number]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


# --- Where gloo is missing -----------------------------------------------------------------------


def _interpreter(folder, script):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_gloo_is_left_out_where_pytorch_is_missing(monkeypatch, tmp_path):
    script = "echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1"
    python = _interpreter(tmp_path, script)
    monkeypatch.setattr(sys, "executable", python)
    args, out = collectives.parse([]), io.StringIO()
    assert collectives.settle_gloo(args, Console(file=out, width=300)) is None
    assert args.variants == ["stock", "tf_fuse"]
    expected = f"left out: gloo, {python}: ModuleNotFoundError: No module named 'torch'\n"
    assert out.getvalue() == expected


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'ImportError: libcudnn.so.9' >&2; exit 1", "{python}: ImportError: libcudnn.so.9"),
        ("exit 3", "{python}: ended with status 3"),
        (None, "{python} cannot be run: [Errno 2]"),
    ],
)
def test_an_interpreter_that_was_named_must_have_gloo(script, text, tmp_path, capsys):
    python = _interpreter(tmp_path, script) if script else str(tmp_path / "none")
    assert collectives.main(["--gloo-python", python]) == 2
    assert f"error: --gloo-python: no gloo in {text.format(python=python)}" in (
        capsys.readouterr().err
    )
