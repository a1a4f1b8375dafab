# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variables in shards, used eagerly, in a process with two logical devices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import scripted

ROOT = Path(__file__).resolve().parents[5]
PROGRAM = """
import sys
from tests import scripted
import tensorflow as tf
cpus = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
from tf_fuse import layout
w, other = tf.Variable(tf.ones([8, 4]), name="w"), tf.Variable(3.0, name="other")
args = [tf.TensorSpec([4, 8])]
names = {"w": [None, "h"]}
mesh = layout.Mesh({"x": 2})
plan = layout.plan(lambda x: x @ w, mesh, args, mode="propagate", rules="h:x", dimensions=names)
run = layout.execute(plan)
found = {
    "l2": float(tf.nn.l2_loss(w)), "mean": float(tf.reduce_mean(w, 0)[0]),
    "shape": tf.shape(w).numpy().tolist(), "square": tf.square(w).shape.as_list(),
}
both = tf.train.Checkpoint(w=w, other=other)
path = both.write(sys.argv[1])
w.assign(w * 2)
other.assign(5.0)
both.read(path).assert_consumed()
found["restored"] = [float(tf.reduce_sum(w)), float(other)]
run.release()
try:
    run(tf.ones([4, 8]))
except layout.LayoutError as error:
    found["released"] = str(error)

from tf_fuse.layout.execution.variables import variable as variables
from tf_fuse.layout.execution.execute import Execution

total = tf.function(lambda: tf.reduce_sum(w), autograph=False)

def failing(owner, name, kind, first=False):
    # Until it is called once it does not do what it should, or does it and fails.
    before = getattr(owner, name)

    def fails(*args):
        setattr(owner, name, before)
        if first:
            before(*args)
        raise kind(name)

    setattr(owner, name, fails)

def said(action):
    try:
        action()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"

def state():
    # What the variable is and has, and what a function has that was traced before.
    stale = said(lambda: total())
    return [type(w).__name__, float(tf.reduce_sum(w)),
            "in slices" if "in slices" in stale else float(total())]

class Final(type(w)):
    def __init_subclass__(cls, **given):
        raise TypeError("no subclass")

class Slotted(type(w)):
    def __setattr__(self, name, value):
        if name == "tf_fuse_shards":
            raise AttributeError("nothing else")
        super().__setattr__(name, value)

def execute():
    return layout.execute(layout.plan(lambda x: x @ w, mesh, args))

states = {"before": [state()]}
for kind in (Final, Slotted):
    other = kind(tf.ones([8, 4]), name="other")
    plan = layout.plan(lambda x: x @ w + x @ other, mesh, args)
    text = said(lambda: layout.execute(plan))
    states[kind.__name__] = [text, float(tf.reduce_sum(other)), type(other).__name__, state()]
for name, owner, first in [
    ("_close", variables, False), ("_close", variables, True), ("_be_laid_out", variables, True),
    ("_traced", Execution, False),
]:
    failing(owner, name, KeyboardInterrupt, first)
    states[f"{name} {first}"] = [said(execute), state()]
for name, first in [("_open", False), ("_open", True), ("_be_itself", False), ("_be_itself", True)]:
    w.assign(tf.ones([8, 4]))
    run = execute()
    failing(variables, name, MemoryError, first)
    text = said(run.release)
    w.assign_add(tf.ones([8, 4]))
    among = type(w).__name__, float(run(tf.ones([4, 8]))[0, 0]) if first is False else None
    run.release()
    states[f"{name} {first}"] = [text, *among, state()]
w.assign(tf.ones([8, 4]))
run = execute()
first, last = w.tf_fuse_shards.variables.values()
failing(last, "assign", KeyboardInterrupt)
# The second one is called by name.
last_assign, last.assign = last.assign, lambda value, read_value: last_assign(value)
halves = [said(lambda: w.assign(tf.zeros([8, 4])))]
last.assign = type(last).assign.__get__(last)
halves += [said(w.numpy), said(lambda: run(tf.ones([4, 8]))), said(run.release)]
w.assign(tf.ones([8, 4]) * 2)
run.release()
found["halves"] = [*halves, state()]
found["states"] = states
scripted.give(found)
"""


def test_variables_in_parts_are_read_and_restored_whole(isolated_env, tmp_path):
    """By calls that read the buffer by themselves; and beside a variable that has no plan."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "both")]
    found = scripted.result_of(command, isolated_env)
    assert "was released; execute the plan again" in found.pop("released")
    half = (
        "LayoutError: variable 'w' has been assigned to in some of its slices only: that was "
        "interrupted, or this reads it in the middle; assign to it, or restore it, again"
    )
    assert found.pop("halves") == [
        "KeyboardInterrupt: assign", half, half, half, ["ResourceVariable", 64.0, 64.0],
    ]  # fmt: skip
    # Whatever fails, and wherever it is interrupted, a value is in the shards or in the variable.
    itself = ["ResourceVariable", 32.0, 32.0]
    twice, laid_out = ["ResourceVariable", 64.0, 64.0], "LaidOutResourceVariable"
    refused = (
        "LayoutError: variable 'other' is a {}, which cannot be laid out, since it cannot become "
        "one of a subclass ({}); make it a tf.Variable"
    )
    assert found.pop("states") == {
        "before": [itself],
        "Final": [refused.format("Final", "TypeError: no subclass"), 32.0, "Final", itself],
        "Slotted": [refused.format("Slotted", "AttributeError: nothing else"), 32.0, "Slotted",
                    itself],
        "_close False": ["KeyboardInterrupt: _close", itself],
        "_close True": ["KeyboardInterrupt: _close", itself],
        "_be_laid_out True": ["KeyboardInterrupt: _be_laid_out", itself],
        "_traced False": ["KeyboardInterrupt: _traced", itself],
        "_open False": ["MemoryError: _open", laid_out, 16.0, twice],
        "_open True": ["MemoryError: _open", laid_out, None, twice],
        "_be_itself False": ["MemoryError: _be_itself", laid_out, 16.0, twice],
        "_be_itself True": ["MemoryError: _be_itself", "ResourceVariable", None, twice],
    }  # fmt: skip
    assert found == {
        "l2": 16.0, "mean": 1.0, "shape": [8, 4], "square": [8, 4], "restored": [32.0, 3.0],
    }  # fmt: skip


def test_functions_that_were_traced_before_get_an_error_instead_of_a_value(isolated_env, tmp_path):
    """Whatever reads or writes by the variable's own handle; it works again after a release."""
    command = [
        sys.executable,
        str(ROOT / "tests/unit/layout/execution/variables/stale_functions.py"),
        str(tmp_path),
    ]
    found = scripted.result_of(command, isolated_env | {"PYTHONPATH": str(ROOT)})
    stale, again = found.pop("stale"), found.pop("again")
    others = {
        "scalar": "b in slices", "assign a number": "b in slices", "add": "b in slices",
        "integer": "n in slices", "bool": "on in slices", "descent": "Invalid variable reference.",
        "sum by XLA": "Trying to read variable with wrong dtype",
        "assign by XLA": "Trying to assign variable with wrong dtype",
    }  # fmt: skip
    # A function of several variables fails at any of them.
    assert stale.pop("planned") in {f"{name} in slices" for name in ("w", "b", "n", "on")}
    assert len(stale) == 26
    assert stale == {name: others.get(name, "w in slices") for name in stale}
    assert again.pop("planned")
    assert again == dict.fromkeys(stale, True)
    assert found.pop("metrics") == {
        "keras": [pytest.approx(44 / 7), True, 5.625],
        "tf_keras": [pytest.approx(44 / 7), True, 5.625],
    }
    assert found == {
        "kept": True, "initialized": [False, True], "exported": [528.0, 528.0],
        "traced to be exported": "w in slices", "saver": 528.0, "restored": "w in slices",
        "value": 244.0, "zeros": 0.0,
    }  # fmt: skip
