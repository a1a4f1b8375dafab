# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse plan`: bundled and own functions, files, and errors."""

import json

import pytest
import tensorflow as tf

from tf_fuse import cli, layout
from tf_fuse.cli import plan as plan_command

_PROGRAM = """
import tensorflow as tf

_WEIGHT = tf.Variable(tf.ones([8, 4]), name="w")

def product():
    return lambda x: x @ _WEIGHT, [tf.TensorSpec([16, 8])]

def named():
    return *product(), {"dimensions": {"x": ["batch", None]}}

def moded():
    return *product(), {"mode": "data"}

def wrong():
    return product

def single():
    return (1,)
"""


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """A function that runs the command in a folder with a program; (status, output, errors)."""
    (tmp_path / "planned_program.py").write_text(_PROGRAM)
    monkeypatch.chdir(tmp_path)

    def plan(*arguments):
        status = cli.main(["plan", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return plan


def test_the_example_has_a_table_and_files(plan, tmp_path):
    status, out, err = plan("--example", "--json", "plan.json", "--save", "step.plan")
    assert (status, err) == (0, "")
    assert "no plan is cheaper" in out and "data parallel" in out
    written = json.loads((tmp_path / "plan.json").read_text())
    function, args = plan_command._two_layers()
    problem = layout.function_problem(tf.function(function), layout.Mesh({"x": 2}), args)
    assert problem.load("step.plan").seconds == written["seconds"]
    assert written["mesh"] == "x:2" and written["optimal"] is True
    assert written["variables"] == {"w": ["S(1)"], "v": ["B"]}
    assert written["inputs"] == {"x": ["B"], "labels": ["B"]}


def test_own_functions(plan):
    status, out, _ = plan("planned_program:product", "--mesh", "x:2;y:2", "--json", "-")
    assert status == 0
    assert json.loads(out)["memory_bytes"] > 0
    named = ("planned_program:named", "--mode", "propagate", "--rules", "batch:x", "--json", "-")
    status, out, _ = plan(*named)
    assert (status, json.loads(out)["inputs"]) == (0, {"x": ["S(0)"]})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no_colon"], "'no_colon' is not MODULE:NAME, as in train:step_and_args"),
        (["no_such_module:f"], "cannot import no_such_module: No module named 'no_such_module'; "),
        (["planned_program:f"], "planned_program has no function f"),
        (["planned_program:wrong"], "planned_program:wrong returned function; it must return "),
        (["planned_program:single"], "planned_program:single returned a tuple of 1; it must "),
        (["planned_program:moded"], "planned_program:moded returned mode; give it on the command "),
        (["--example", "--mesh", "x2"], "axis 'x2' of 'x2': write name:value"),
        (["--example", "--memory-limit", "1"], "no plan fits into memory_limit_bytes=1: "),
        (["--example", "--save", "no/such/folder"], "No such file or directory: "),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(plan, arguments, text):
    status, out, err = plan(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith("tf-fuse: error: ") and text in err


@pytest.mark.parametrize("arguments", [[], ["planned_program:product", "--example"]])
def test_a_function_or_the_example(plan, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        plan(*arguments)
    assert ended.value.code == 2
    assert "plan takes MODULE:NAME or --example, one of both" in capsys.readouterr().err
