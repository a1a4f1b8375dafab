# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of benchmarks/collectives, and what is left out where gloo is missing."""

import io
import signal
import sys

import pytest
from rich.console import Console

from benchmarks.collectives import results as numbers
from benchmarks.collectives import run as collectives


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4KB", 4096),
        ("4kib", 4096),
        ("64MB", 64 << 20),
        ("1GiB", 1 << 30),
        ("40004B", 40004),
        ("8", 8),
    ],
)
def test_sizes(text, size):
    assert numbers.parse_size(text) == size


@pytest.mark.parametrize("size", [4, 4096, 40004, 1 << 20, 3 << 30])
def test_names_of_sizes_are_exact(size):
    assert numbers.parse_size(numbers.size_name(size)) == size


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--op broadcast", "--op takes all_reduce, reduce_scatter, all_gather, rs_ag; got 'broad"),
        ("--ranks 2,1", "--ranks takes whole numbers of at least 2, got '1'"),
        ("--ranks two", "--ranks takes whole numbers of at least 2, got 'two'"),
        ("--ranks ,", "--ranks names nothing"),
        ("--sizes 4XB", "--sizes: no size: '4XB'; expected a number and one of B, KB, MB, GB"),
        ("--sizes MB", "--sizes: no size: 'MB'"),
        ("--sizes 1.5MB", "--sizes: no size: '1.5MB'"),
        ("--sizes=-4KB", "--sizes: no size: '-4KB'"),
        ("--sizes 0KB", "--sizes: '0KB' is 0 bytes; expected a positive multiple of 4 (float32)"),
        ("--sizes 4KB,6B", "--sizes: '6B' is 6 bytes; expected a positive multiple of 4"),
        ("--variants stock,nccl", "--variants takes stock, tf_fuse, gloo; got 'nccl'"),
        ("--paths udp", "--paths takes shm, tcp, grpc; got 'udp'"),
        ("--rounds 0", "--rounds must be at least 1, got 0"),
        ("--calls -1", "--calls must be at least 1, got -1"),
        ("--timeout nan", "--timeout must be at least 1, got nan"),
        ("--large-rounds 0", "--large-rounds must be at least 1, got 0"),
        ("--hosts 3", "argument --hosts: invalid choice"),
        ("--mbit 10", "--mbit 10 is of no use on loopback: give --hosts 2"),
        ("--delay-ms 1", "--delay-ms 1 is of no use on loopback: give --hosts 2"),
        ("--emulator veth", "--emulator veth is of no use on loopback: give --hosts 2"),
        ("--hosts 2 --mbit -1", "--mbit must be at least 0 and finite, got -1"),
        ("--hosts 2 --delay-ms nan", "--delay-ms must be at least 0 and finite, got nan"),
        ("--hosts 2 --delay-ms 1 --emulator veth", "--delay-ms 1: the emulator veth cannot delay"),
        ("--variants stock --gloo-python p", "--gloo-python p is of no use: --variants lacks gloo"),
    ],
)
def test_wrong_flags(arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        collectives.parse(arguments.split())
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_lists_by_spaces_and_commas():
    args = collectives.parse(["--ranks", "2,4", "8", "2", "--sizes", "4KB,", "1MB"])
    assert (args.ranks, args.sizes) == ([2, 4, 8], [4096, 1 << 20])
    assert args.op == ["all_reduce"]
    assert collectives.parse([]).sizes == [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


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


@pytest.mark.parametrize(
    ("arguments", "paths", "emulator"),
    [
        ("", ["shm"], None),
        ("--hosts 2", ["grpc", "tcp"], "veth"),
        ("--hosts 2 --mbit 10 --paths shm", ["shm"], "veth"),
        # What can delay is chosen by what the kernel has.
        ("--hosts 2 --delay-ms 1", ["grpc", "tcp"], None),
        ("--hosts 2 --emulator relay", ["grpc", "tcp"], "relay"),
    ],
)
def test_what_is_between_hosts(arguments, paths, emulator):
    args = collectives.parse(arguments.split())
    assert (args.paths, args.emulator) == (paths, emulator)


def test_rounds_of_large_sizes():
    args = collectives.parse(["--rounds", "5", "--large-rounds", "2"])
    rounds = [collectives.rounds_of(args, size << 20) for size in (64, 255, 256, 1024)]
    assert rounds == [5, 5, 2, 2]
    assert collectives.rounds_of(collectives.parse(["--rounds", "5"]), 1 << 30) == 5


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


def test_gloo_is_kept_where_pytorch_is(tmp_path):
    python = _interpreter(tmp_path, "exit 0")
    args = collectives.parse(["--gloo-python", python])
    assert collectives.settle_gloo(args, Console()) is None
    assert args.variants == ["stock", "tf_fuse", "gloo"]


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
