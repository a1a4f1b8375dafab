# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variables in shards, used eagerly, in a process with two logical devices."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import scripted
from tf_fuse.layout.execution.communication import process_collectives
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.execution.variables.read_write_lock import ReadWriteLock
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh

ROOT = Path(__file__).resolve().parents[4]
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


TAPES = """
from tests import scripted
import numpy as np
import tensorflow as tf
cpus = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
from tf_fuse import layout
values = np.arange(32, dtype=np.float32).reshape(8, 4)
w = tf.Variable(values, name="w")
x, specs = tf.ones([4, 8]), [tf.TensorSpec([4, 8])]
given = {"mode": "propagate", "rules": "h:x", "dimensions": {"w": ["h", None]}}
mesh = layout.Mesh({"x": 2})
losses = {
    "matmul": lambda: tf.reduce_sum(tf.matmul(x, w) ** 2),
    "l2": lambda: tf.nn.l2_loss(w),
    "twice": lambda: tf.reduce_sum(w * w + 3 * w),
    "gather": lambda: tf.reduce_sum(tf.gather(w, [1, 1, 2]) ** 2),
    "gather_nd": lambda: tf.reduce_sum(tf.gather_nd(w, [[1, 2]]) ** 2),
    "slice": lambda: tf.reduce_sum(w[1:3]) ** 2,
}

def gradients():
    found = {}
    for name, loss in losses.items():
        for accessed in (True, False):
            with tf.GradientTape(watch_accessed_variables=accessed) as tape:
                if not accessed:
                    tape.watch(w)
                made = loss()
            gradient = tape.gradient(made, w)
            gradient = None if gradient is None else tf.convert_to_tensor(gradient).numpy()
            found[f"{name} {accessed}"] = gradient
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            made = tf.reduce_sum(w**3)
        first = tape.gradient(made, w)
    found["second"] = outer.gradient(first, w).numpy()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        made = losses["l2"]()
    found["unwatched"] = tape.gradient(made, w)
    return found

def changed():
    rows = tf.IndexedSlices(tf.fill([2, 4], 2.0), tf.constant([1, 5]), [8, 4])
    for name in ("add", "div", "max", "min", "mul", "sub", "update"):
        getattr(w, f"scatter_{name}")(rows)
    w[2:4, 1].assign([70.0, 80.0])
    for name in ("add", "max", "min", "sub", "update"):
        getattr(w, f"scatter_nd_{name}")([[1, 2], [7, 0]], [3.0, 5.0])
    return w.numpy()

def told(action):
    try:
        action()
    except layout.LayoutError as error:
        return str(error)
    return "nothing"

wanted = gradients(), changed()
w.assign(values)
plan = layout.plan(lambda x: x @ w, mesh, specs, **given)
run = layout.execute(plan)
got = gradients()
found = {name: bool(np.array_equal(one, wanted[0][name])) for name, one in got.items()}
found["unwatched"] = got["unwatched"] is None
found["changed"] = bool(np.array_equal(changed(), wanted[1]))
found["shards"] = type(w).__name__
one_row = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([1]))
other = layout.Mesh({"y": 2})
f = lambda x: x @ w
def refused(action):
    try:
        action()
    except ValueError as error:
        return str(error)
    return "nothing"

def through(call, *sources):
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = call(x)
    return tape.gradient(made, [*sources] or x)

nested = tf.function(run, autograph=False)
by_run = [
    told(lambda: through(run, w)), told(lambda: through(run)), told(lambda: through(nested, w)),
    told(tf.function(lambda: through(run, w), autograph=False)),
    told(tf.function(lambda: tf.gradients(run(x), [w.handle]), autograph=False)),
]
held = w.numpy()
refusals = [
    refused(lambda: w.assign(1.0)), refused(lambda: w.assign_add(tf.ones([1, 4]))),
    refused(lambda: w.assign_sub(1.0)), refused(lambda: w.assign_sub(tf.ones([3, 8, 4]))),
    refused(lambda: w.assign_add(tf.ones([8, 4], tf.int32))).split(":")[0],
]
found["left alone"] = bool(np.array_equal(w.numpy(), held))
errors = {
    "in place": told(tf.function(lambda: w.scatter_add(one_row), autograph=False)),
    "mesh": told(lambda: layout.execute(layout.plan(f, other, specs))),
    "devices": told(lambda: layout.execute(plan, ["CPU:1", "CPU:0"])),
    "kept mesh": told(lambda: layout.plan(f, other, specs, keep_layouts=True)),
    "asked": told(lambda: layout.plan(f, mesh, specs, pins={"w": "replicate"}, keep_layouts=True)),
}
# Where its own search would have it otherwise, a second plan takes what is there.
free, kept = layout.plan(f, mesh, specs), layout.plan(f, mesh, specs, keep_layouts=True)
layouts = [str(one.variables["w"]) for one in (plan, free, kept)]
same = np.array_equal(layout.execute(kept)(x), run(x))
told_all = [found, errors, refusals, layouts, bool(same), by_run]
scripted.give(told_all)
"""


def test_eager_tapes_and_methods_in_place(isolated_env):
    """Gradients of a variable in shards are those of a whole one, and so is what is changed."""
    command = [sys.executable, "-c", TAPES]
    found, errors, refusals, layouts, same, by_run = scripted.result_of(command, isolated_env)
    assert found.pop("shards") == "LaidOutResourceVariable"
    assert set(found) > {"matmul True", "slice False", "second", "unwatched", "changed"}
    assert all(found.values()), found
    assert errors == {
        "in place": "variable 'w' lies in slices, [8/x, 4] on x:2, and is assigned to in a "
        "function that has no plan; plan and execute that function on the same mesh too, or "
        "release the variable first",
        "mesh": "variable 'w' lies on mesh 'x:2' already, and this plan is for mesh 'y:2'; plan "
        "for the first one, or release the variable first",
        "devices": "variable 'w' lies on CPU:0, CPU:1 already, and this plan is to run on CPU:1, "
        "CPU:0; give the same devices, or release the variable first",
        "kept mesh": "variable 'w' lies on mesh 'x:2', and the plan is for 'y:2'; plan for the "
        "first one, or release the variable before",
        "asked": "variable 'w' lies as [8/x, 4] on x:2 already, and is asked for as one of "
        "replicate; leave it out of what is asked for, or release it first",
    }
    # Also where TensorFlow's addition would have broadcast it.
    shape = "variable 'w' has shape (8, 4), got {}; {} a value of its shape"
    assert refusals == [
        shape.format("()", "assign"), shape.format("(1, 4)", "add"), shape.format("()", "subtract"),
        shape.format("(3, 8, 4)", "subtract"),
        "Tensor conversion requested dtype float32 for Tensor with dtype int32",
    ]  # fmt: skip
    # A gradient through what a plan runs would be None for the variables.
    assert by_run == [
        "a gradient through '<lambda>' is asked for, which runs by a plan and has none; plan the "
        "function that asks for the gradient"
    ] * len(by_run)  # fmt: skip
    assert layouts[0] == layouts[2] == "[8/x, 4] on x:2" != layouts[1]
    assert same


def test_functions_that_were_traced_before_get_an_error_instead_of_a_value(isolated_env, tmp_path):
    """Whatever reads or writes by the variable's own handle; it works again after a release."""
    command = [
        sys.executable,
        str(ROOT / "tests/unit/layout/execution/stale_functions.py"),
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


def _waits(turns: ReadWriteLock) -> None:
    """Returns when a thread waits to write."""
    while not turns._waiting:
        threading.Event().wait(0.001)


def _ends(*bodies) -> list[str]:
    """What threads did, one after the other begun; each has to end."""
    done: list[str] = []
    threads = [threading.Thread(target=one, args=(done,), daemon=True) for one in bodies]
    for one in threads:
        one.start()
    for one in threads:
        one.join(100)
    assert not any(one.is_alive() for one in threads), done
    return done


def test_a_thread_that_reads_comes_in_again_while_another_waits_to_write():
    """As a signal handler or a destructor that reads a variable in the middle of a call."""
    turns, reads = ReadWriteLock(), threading.Event()

    def reader(done: list[str]) -> None:
        with turns.shared():
            reads.set()
            _waits(turns)
            with turns.shared():
                done.append("again")
            done.append("read")

    def writer(done: list[str]) -> None:
        reads.wait()
        with turns.alone(), turns.shared(), turns.alone():
            done.append("written")

    assert _ends(reader, writer) == ["again", "read", "written"]


def test_a_thread_that_reads_gets_an_error_where_it_writes():
    """It would wait for itself; and afterwards all may come in."""
    turns = ReadWriteLock()

    def both(done: list[str]) -> None:
        with turns.shared():
            with pytest.raises(LayoutError, match="while the same thread reads"):
                turns.alone().__enter__()
            done.append("refused")
        with turns.alone():
            done.append("written")

    assert _ends(both) == ["refused", "written"]


def test_a_thread_that_waits_to_write_may_read():
    """As a signal handler does while the main thread waits; also where two threads do so."""
    turns, reads, ends = ReadWriteLock(), threading.Event(), threading.Event()
    wait, handled = turns._condition.wait, set()

    def reader(done: list[str]) -> None:
        def interrupted(timeout=None):
            if threading.get_ident() not in handled:
                handled.add(threading.get_ident())
                with turns.shared():
                    done.append("handled")
                if len(handled) == 2:
                    ends.set()
            return wait(timeout)

        with turns.shared():
            turns._condition.wait = interrupted
            reads.set()
            ends.wait()

    def writer(done: list[str]) -> None:
        reads.wait()
        with turns.alone():
            done.append("written")

    assert _ends(reader, writer, writer) == ["handled"] * 2 + ["written"] * 2


def test_a_handler_that_waits_in_the_middle_of_waiting_takes_no_notification_along():
    """It is notified in place of what it interrupted, which nobody notifies any more then."""
    turns, writes, ends = ReadWriteLock(), threading.Event(), threading.Event()
    wait = turns._condition.wait

    def writer(done: list[str]) -> None:
        with turns.alone():
            writes.set()
            ends.wait()
            done.append("written")

    def reader(done: list[str]) -> None:
        def interrupted(timeout=None):
            turns._condition.wait = wait
            ends.set()
            with turns.shared():
                done.append("handled")
            return wait(timeout)

        writes.wait()
        turns._condition.wait = interrupted
        with turns.shared():
            done.append("read")

    assert _ends(writer, reader) == ["written", "handled", "read"]


def test_calls_of_some_processes_do_not_count_where_all_meet(monkeypatch):
    """Two of three processes have a mesh of their own; then they read one that all of them have."""
    met: list[str] = []
    service = SimpleNamespace(
        coordination_service=True, wait_at_barrier=lambda name, limit: met.append(name)
    )
    monkeypatch.setattr(process_collectives.context, "context", lambda: service)
    monkeypatch.setattr(process_collectives.config, "num_clients", lambda: 3)

    def begun(size: int) -> process_collectives.ProcessCollectives:
        # Of this process's device alone, without asking the others.
        found = process_collectives.ProcessCollectives.__new__(
            process_collectives.ProcessCollectives
        )
        found._devices = Devices(Mesh({"x": size}), {0: "CPU:0"})
        return found

    whole, some = begun(3), begun(2)
    for calls_of_some in (0, 2):
        monkeypatch.setattr(process_collectives, "_calls", {"so far": 0})
        whole.begin_call()
        for _ in range(calls_of_some):
            some.begin_call()
            some.meet("read")
        whole.meet("read")
    assert met == ["tf_fuse/layout/1/read"] * 2
