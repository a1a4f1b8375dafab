# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse plan-cluster`: its tables, files and errors."""

import dataclasses
import json
import sys
import zipfile

import keras
import pytest
import tensorflow as tf

pytest.importorskip("simpy")

from tests.unit.scale.rates import rates
from tf_fuse import cli
from tf_fuse.cli.scale.plan_cluster import numbers
from tf_fuse.scale.collective_rates import CollectiveRates, WayRates
from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.prediction import Link, numbers_to_try
from tf_fuse.scale.rates import load_rates, save_rates

_COSTS = rates(
    operation_s=2e-6, dispatch_s=1e-3, worker_call_s=5e-4, server_call_s=5e-4, receive_s=4e-5,
    send_s=2e-5, frame_receive_s=2e-4, flop_s=1e-11, byte_s=1e-10,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.save(tmp_path / "model.keras")
    save_rates(_COSTS, tmp_path / "costs.json", {})
    return tmp_path


def _arguments(folder, *more):
    return [
        "plan-cluster", "--model", str(folder / "model.keras"), "--rates",
        str(folder / "costs.json"), "--workers", "4", "--ps", "2", "--cores", "4", *more,
    ]  # fmt: skip


def test_keras_file(folder, capsys):
    assert cli.main(_arguments(folder, "--sweep", "ps=1,3")) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "4 workers, 2 servers, a host of 4 cores each, 10Gbit,0.1ms (predicted)" in text
    for row in ("steps/s", "over stock", "a step waits", "RPCs with tensors per step"):
        assert row in text
    assert "steps/s by number of servers" in text
    assert "recommended: " in text


def test_json_has_the_figures_of_the_tables(folder, capsys):
    assert cli.main(_arguments(folder, "--json", "-")) == 0
    found = json.loads(capsys.readouterr().out)
    stock, fused = found["modes"]["stock"], found["modes"]["fused"]
    assert fused["rpcs_per_step"] < stock["rpcs_per_step"]
    assert fused["bytes_per_step"] == stock["bytes_per_step"]
    assert found["recommended_servers"] in {one["servers"] for one in found["sweep"]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            ["--link", "fast"],
            "tf-fuse: error: the link 'fast' is not a rate above 0 and a delay, as in "
            "10Gbit,0.1ms (bit, Kbit, Mbit, Gbit; us, ms, s)\n",
        ),
        (
            ["--model", "model.h5"],
            "tf-fuse: error: 'model.h5' is neither a .keras file, nor the folder of a SavedModel, "
            "nor MODULE:NAME, as in train:step_and_args\n",
        ),
        (["--model", "none.keras"], "tf-fuse: error: none.keras does not exist\n"),
        (
            ["--sweep", "workers=1..4"],
            "tf-fuse: error: --sweep 'workers=1..4' is not a range of 1 or more servers, the "
            "smaller number first, as in ps=1..64 or ps=1,2,4\n",
        ),
        (
            ["--hosts", "3"],
            "tf-fuse: error: --hosts 3 is for --replicas; a worker or server has a host of its "
            "own, or with --one-host all have one\n",
        ),
        (
            ["--model", "none.keras", "--signature", "train"],
            "tf-fuse: error: --signature train is for the folder of a SavedModel, and --model is "
            "none.keras\n",
        ),
        (
            ["--json", "none/found.json"],
            "tf-fuse: error: --json none/found.json: the folder none does not exist; make it "
            "first\n",
        ),
        (
            ["--rates", "none.json"],
            "tf-fuse: error: none.json, with the costs of this machine, does not exist; run: "
            "tf-fuse calibrate --out none.json\n",
        ),
    ],
)
def test_errors_say_what_to_do(folder, monkeypatch, capsys, change, text):
    monkeypatch.chdir(folder)
    assert cli.main(_arguments(folder, *change)) == 1
    assert capsys.readouterr().err == text


def test_a_picture_of_unknown_kind_is_refused(folder, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(_arguments(folder, "--plot", "found.foo")) == 1
    assert "--plot found.foo has the ending 'foo', must be one of " in capsys.readouterr().err


_PROGRAM = """
import tensorflow as tf

def one():
    return 1

def number():
    return 1, ()

def tensor():
    return tf.identity, tf.constant(1.0)

def fails():
    raise RuntimeError("mine")

def step_fails():
    return (lambda x: x.foo), (tf.constant(1.0),)
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one", "steps:one must return (function, arguments), and returned int"),
        ("number", "steps:number must return (function, arguments), and returned int, tuple"),
        (
            "tensor",
            "steps:tensor must return a tuple of arguments after the function",
        ),
        ("fails", "steps:fails raised RuntimeError: mine ("),
        ("step_fails", "the step of steps:step_fails raised AttributeError: "),
        ("none", "steps has no function none"),
    ],
)
def test_errors_of_a_program_are_named(folder, monkeypatch, capsys, name, text):
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    (folder / "steps.py").write_text(_PROGRAM)
    assert cli.main(_arguments(folder, "--model", f"steps:{name}")) == 1
    assert f"tf-fuse: error: {text}" in capsys.readouterr().err


def test_a_program_that_cannot_be_imported_is_named(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "wrong_steps.py").write_text("def (")
    assert cli.main(_arguments(folder, "--model", "wrong_steps:step")) == 1
    assert "tf-fuse: error: wrong_steps raised SyntaxError: " in capsys.readouterr().err


def test_models_that_cannot_be_trained_are_refused(folder, capsys):
    def error_of(name):
        assert cli.main(_arguments(folder, "--model", str(folder / name))) == 1
        return capsys.readouterr().err

    (folder / "folder.keras").mkdir()
    assert "folder.keras is a folder, not a file" in error_of("folder.keras")
    with zipfile.ZipFile(folder / "empty.keras", "w") as file:
        file.writestr("other", "")
    assert "Keras cannot load" in error_of("empty.keras")
    keras.Sequential([keras.Input((4,)), keras.layers.ReLU()]).save(folder / "still.keras")
    assert "still.keras has no weights to train" in error_of("still.keras")
    keras.Sequential([keras.layers.Dense(1)]).save(folder / "new.keras")
    assert "new.keras was saved before it knew its inputs" in error_of("new.keras")

    @keras.saving.register_keras_serializable("mine")
    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    keras.Sequential([keras.Input((4,)), Twice()]).save(folder / "own.keras")
    keras.saving.get_custom_objects().clear()
    error = error_of("own.keras")
    assert "Twice" in error
    assert "as --model MODULE:NAME" in error


class _Saved(tf.Module):
    def __init__(self):
        super().__init__()
        self.weights = [tf.Variable(tf.ones([8, 8])) for _ in range(3)]

    @tf.function(input_signature=[tf.TensorSpec([None, 8])])
    def train(self, x):
        for weight in self.weights:
            x = x @ weight
        for weight in self.weights:
            weight.assign_sub(tf.reduce_mean(x) * weight)
        return {"loss": tf.reduce_mean(x)}


def test_saved_model(folder, capsys):
    program = _Saved()
    tf.saved_model.save(program, folder / "saved", {"train": program.train})
    chosen = ["--model", str(folder / "saved"), "--json", "-"]
    assert cli.main(_arguments(folder, *chosen, "--batch", "16")) == 0
    found = json.loads(capsys.readouterr().out)
    # Each weight is read twice, and something is subtracted from it.
    assert found["modes"]["stock"]["bytes_per_step"] == 3 * 3 * 8 * 8 * 4
    assert cli.main(_arguments(folder, *chosen, "--signature", "no")) == 1
    assert capsys.readouterr().err == (
        f"tf-fuse: error: {folder / 'saved'} has the signatures train; name the training step's by "
        "--signature, got no\n"
    )
    tf.saved_model.save(tf.Module(), folder / "bare")
    assert cli.main(_arguments(folder, "--model", str(folder / "bare"))) == 1
    assert "bare has no signature; save it anew with " in capsys.readouterr().err


def _with_collectives(folder):
    ways = dict.fromkeys(("stock", "shm", "grpc"), WayRates(1e-4, 1e-5, 1e-9))
    save_rates(_COSTS, folder / "costs.json", {}, CollectiveRates(ways))


def test_replicas(folder, capsys):
    _with_collectives(folder)
    assert cli.main(_arguments(folder, "--replicas", "8", "--hosts", "2")) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "8 replicas on 2 hosts of 4 cores, 10Gbit,0.1ms" in text
    for row in ("stock, ring", "fused, direct", "sharded, ring", "recommended: "):
        assert row in text
    assert cli.main(_arguments(folder, "--replicas", "8", "--json", "-")) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    size = 4 * (20 * 8 + 8 + 8 + 1)
    sent = {name: one["sent_bytes"] for name, one in modes.items()}
    # So little is sent to all at once; else all ways send as much, if each replica has a host.
    assert sent.pop("fused, direct") == pytest.approx(7 * size)
    assert list(sent.values()) == pytest.approx([2 * 7 / 8 * size] * 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sweep", "ps=1,2"), "--sweep and --plot try numbers of servers, and --replicas have"),
        (("--one-host", "--hosts", "2"), "--one-host is one host, and --hosts 2 are more"),
        (("--hosts", "3"), "8 replicas cannot be on 3 hosts alike; take a number of hosts that"),
        (
            ("--replicas", "600", "--hosts", "4"),
            "--replicas 600 on --hosts 4 are 150 on a host, 128 at most; name more hosts",
        ),
        (("--replicas", "20000"), "--replicas 20000 are too many to simulate, 16384 at most"),
    ],
)
def test_what_does_not_go_with_replicas_is_refused(folder, capsys, arguments, message):
    _with_collectives(folder)
    assert cli.main(_arguments(folder, "--replicas", "8", *arguments)) == 1
    assert message in capsys.readouterr().err


def test_replicas_need_costs_of_collectives(folder, capsys):
    assert cli.main(_arguments(folder, "--replicas", "8")) == 1
    assert "has no costs of collectives by stock; run: tf-fuse calibrate" in capsys.readouterr().err


def test_costs_of_collectives_are_checked(folder, capsys):
    ways = dict.fromkeys(("stock", "shm", "grpc"), WayRates(1e-4, 1e-5, float("nan")))
    save_rates(_COSTS, folder / "costs.json", {}, CollectiveRates(ways))
    assert cli.main(_arguments(folder, "--replicas", "8")) == 1
    assert "byte_s of stock is nan, must be a number, 0 or more; run" in capsys.readouterr().err


def test_rates_are_read_as_they_were_written(tmp_path):
    save_rates(_COSTS, tmp_path / "costs.json", {"cores": 2})
    assert load_rates(tmp_path / "costs.json") == _COSTS


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[]", "the costs have version None, and this is for version 3"),
        ('{"version": 7}', "the costs have version 7, and this is for version 3"),
        ("{", "holds no costs"),
        ('{"version": 3, "rates": {}}', "function_s, "),
        (
            '{"version": 3, "rates": []}',
            "function_s, .*; run: tf-fuse calibrate --out ",
        ),
        *(
            (
                json.dumps({"version": 3, "rates": {**dataclasses.asdict(_COSTS), name: value}}),
                f"{name} is {value!r}, must be a number, {least}; run: tf-fuse calibrate --out ",
            )
            for name, value, least in (
                ("hop_s", -1.0, "0 or more"),
                ("hop_s", float("nan"), "0 or more"),
                ("hop_s", float("inf"), "0 or more"),
                ("hop_s", "x", "0 or more"),
                ("hop_s", True, "0 or more"),
                ("core_share", 0, "above 0"),
            )
        ),
    ],
)
def test_a_file_without_rates_is_refused(tmp_path, content, text):
    (tmp_path / "costs.json").write_text(content)
    with pytest.raises(ScaleError, match=text):
        load_rates(tmp_path / "costs.json")


def test_links_and_sweeps():
    assert Link.from_text("10Gbit,0.1ms") == Link(1.25e9, 1e-4)
    assert Link.from_text("100 Mbit, 30us").seconds == pytest.approx(3e-5)
    assert numbers("ps=2..5") == [2, 3, 4, 5]
    assert numbers("ps=8,2") == [2, 8]
    assert numbers_to_try(8) == [1, 2, 3, 4, 5, 7, 8]
    with pytest.raises(ScaleError, match="the smaller number first"):
        numbers("ps=5..2")
