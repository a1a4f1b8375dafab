# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operation that does an update: exact errors of what is wrong with its program or inputs."""

import os
import re
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests import scripted
from tests.unit.kernels.elementwise_programs import (
    OPERATION,
    assign,
    call,
    program_of,
    read,
    step_of,
    variable_of,
)

F, D, B = tf.float32, tf.float64, tf.bool


def _summed(sums, *, rows=3, indices=(tf.int32,), dtype=F):
    """A program whose result is one input of six elements."""
    steps = [step_of("Identity", [0], dtype=dtype)]
    return program_of(6, steps, inputs=[dtype], results=[0], rows=rows, indices=indices, sums=sums)


_WRONG = [
    (program_of(-1, []), "size -1"),
    (program_of(1, [read()] * 10001, variables=[F]), "more than 10000 values"),
    (program_of(1, [], inputs=[tf.string]), "an input of type 7"),
    (program_of(1, [], variables=[tf.uint8]), "a variable of type 4"),
    (program_of(1, []), "neither assignments nor results"),
    (program_of(1, [read()], variables=[F]), "neither assignments nor results"),
    (program_of(1, [step_of("Neg", [1], dtype=F)], inputs=[F]),
     "a step 0 (Neg) that reads value 1 of 1"),
    (program_of(1, [step_of("Neg", [-1], dtype=F)], inputs=[F]),
     "a step 0 (Neg) that reads value -1 of 1"),
    (program_of(1, [step_of("Neg", [0], dtype=F)], inputs=[F], results=[2]),
     "result 2 of 2 values"),
    (program_of(1, [read(), assign(0), step_of("Neg", [1], dtype=F)], variables=[F]),
     "a step 2 (Neg) that reads value 1, which is an assignment's"),
    (program_of(1, [read(), assign(0)], variables=[F], results=[1]),
     "result 1, which is an assignment's"),
    (program_of(1, [step_of("Neg", [0], dtype=tf.string)], inputs=[F]), "a step 0 (Neg) of type 7"),
    (program_of(1, [step_of("Identity", [0], dtype=D)], inputs=[F]),
     "a step 0 (Identity) that needs one input of its type"),
    (program_of(1, [step_of("Reshape", [0, 0], dtype=F)], inputs=[F]),
     "a step 0 (Reshape) that needs one input of its type"),
    (program_of(1, [read(1)], variables=[F]), "a step 0 (ReadVariableOp) of variable 1 of 1"),
    (program_of(1, [read(-1)], variables=[F]), "a step 0 (ReadVariableOp) of variable -1 of 1"),
    (program_of(1, [step_of("ReadVariableOp", [0])], variables=[F], inputs=[F]),
     "a step 0 (ReadVariableOp) with 1 inputs"),
    (program_of(1, [assign(0)], variables=[F], inputs=[D]),
     "a step 0 (AssignVariableOp) that needs one input of type float"),
    (program_of(1, [step_of("AssignVariableOp")], variables=[F]),
     "a step 0 (AssignVariableOp) that needs one input of type float"),
    (program_of(1, [assign(0, kind="Add")], variables=[B], inputs=[B]),
     "a step 0 (AssignAddVariableOp) of type bool"),
    (program_of(1, [step_of("Neg", dtype=F)]), "a step 0 (Neg) without inputs"),
    (program_of(1, [step_of("MatMul", [0], dtype=F)], inputs=[F]),
     "a step 0 (MatMul) of float to float, which is not supported"),
    (program_of(1, [step_of("Mul", [0], dtype=F)], inputs=[F]),
     "a step 0 (Mul) with 1 inputs, not 2"),
    (program_of(1, [step_of("Mul", [0, 1], dtype=F)], inputs=[F, D]),
     "a step 0 (Mul) whose input 1 is double, not float"),
    (program_of(1, [step_of("Select", [0, 0, 0], dtype=F)], inputs=[F]),
     "a step 0 (Select) whose input 0 is float, not bool"),
    (program_of(1, [step_of("AddN", dtype=F)]), "a step 0 (AddN) without inputs"),
    (program_of(1, [step_of("AddN", [0], dtype=D)], inputs=[F]),
     "a step 0 (AddN) of float to type 2"),
    (program_of(1, [step_of("AddN", [0], dtype=B)], inputs=[B]),
     "a step 0 (AddN) of bool to type 10"),
    (program_of(1, [step_of("AddN", [0, 1], dtype=F)], inputs=[F, D]),
     "a step 0 (AddN) whose input 1 is double, not float"),
    (_summed([(0, 0, "")], indices=[F]), "numbers of rows of float"),
    (_summed([(0, 0, "")], indices=[tf.uint8]), "numbers of rows of type 4"),
    (_summed([(0, 0, "")], rows=0), "0 rows of 6 elements"),
    (_summed([(0, 0, "")], rows=-3), "-3 rows of 6 elements"),
    (_summed([(0, 0, "")], rows=4), "4 rows of 6 elements"),
    (_summed([], indices=[]), "3 rows of 6 elements"),
    (_summed([(1, 0, "")]), "rows in input 1 with the numbers 0"),
    (_summed([(-1, 0, "")]), "rows in input -1 with the numbers 0"),
    (_summed([(0, 1, "")]), "rows in input 0 with the numbers 1"),
    (_summed([(0, -1, "")]), "rows in input 0 with the numbers -1"),
    (_summed([(0, 0, ""), (0, 0, "")]), "rows in input 0 with the numbers 0"),
    (_summed([(0, 0, "Mul")]), "a sum of rows of float after the operation 'Mul'"),
    (_summed([(0, 0, "x")]), "a sum of rows of float after the operation 'x'"),
    (_summed([(0, 0, "")], dtype=B), "a sum of rows of bool after the operation ''"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "what"), _WRONG)
def test_wrong_programs(program, what):
    inputs = [tf.zeros([1], F) for _ in program.input_types]
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(program, (), inputs)
    assert f"{OPERATION}: the program has {what}" in error.value.message.split("\n")[0]
    assert f"the program has {what}" in _first(error)


def _first(error):
    """An error without what TensorFlow adds to it."""
    return re.sub(r" \[Op:.*", "", error.value.message.split("\n")[0])


def test_bytes_that_are_no_program():
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(b"\xff\xff\xff")
    assert f"{OPERATION}: the program does not parse" in _first(error)


def test_an_operation_that_is_not_as_its_program():
    program = program_of(2, [read()], variables=[F], inputs=[D], results=[1])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(program, (), [tf.zeros([2])], [tf.int32])
    assert (
        f"{OPERATION}: the program is of 1 variables, inputs of [double] and results of [float]; "
        "the operation has 0, [float] and [int32] of 1 shapes"
    ) in _first(error)


def test_a_result_of_another_size():
    program = program_of(2, [read()], variables=[F], results=[0])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(program, [variable_of(1.0, 2.0)], [], [F], shapes=[[3]])
    assert f"{OPERATION}: a result of shape [3], but 2 elements" in _first(error)


def test_results_without_shapes():
    program = program_of(2, [read()], variables=[F], results=[0])
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as error:
        tf.function(lambda: call(program, [_variable_of_2()], [], [F], shapes=[]))()
    assert f"{OPERATION}: 1 results, but 0 shapes" in str(error.value)


_kept = []


def _variable_of_2():
    if not _kept:
        with tf.init_scope():
            _kept.append(variable_of(1.0, 2.0))
    return _kept[0]


_ADD = program_of(2, [assign(0, kind="Add")], variables=[F], inputs=[F])


def test_an_input_of_another_size():
    v = variable_of(1.0, 2.0)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(_ADD, [v], [tf.zeros([3])])
    assert "input 0 has the shape [3], but the update is of 2 elements" in _first(error)
    assert v.numpy().tolist() == [1.0, 2.0]


_ROWS = _summed([(0, 0, "Square")])


def test_rows_that_are_summed():
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    (result,) = call(_ROWS, (), [rows, tf.constant([2, -1, 2])], [F])
    assert result.numpy().tolist() == [0.0, 0.0, 0.0, 0.0, 26.0, 40.0]


@pytest.mark.parametrize(
    ("rows", "indices", "what"),
    [
        ([2, 2], [0, 3], "segment_ids[1] = 3 is out of range [0, 3)"),
        ([2, 2], [[0, 1], [9, 1]], "segment_ids[1,0] = 9 is out of range [0, 3)"),
        ([3, 2], [0, 1], "data.shape = [3,2] does not start with segment_ids.shape = [2]"),
        ([], [0], "data.shape = [] does not start with segment_ids.shape = [1]"),
        ([2, 3], [0, 1], "2 rows of a tensor of shape [2,3], but the update is of 3 rows with "
         "together 6 elements"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit(rows, indices, what):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(_ROWS, (), [tf.ones(rows), tf.constant(indices)], [F])
    assert what in _first(error)


def test_a_variable_of_another_size_or_type():
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(_ADD, [variable_of(1.0, 2.0, 3.0)], [tf.zeros([2])])
    assert "variable 0 is float of shape [3], but the update is of float and 2 elements" in _first(
        error
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(_ADD, [variable_of(1.0, 2.0, dtype=D)], [tf.zeros([2])])
    assert "variable 0 is double of shape [2], but the update is of float and 2 elements" in _first(
        error
    )


def test_one_variable_as_two():
    v = variable_of(1.0, 2.0)
    program = program_of(2, [read(0), assign(0, 1)], variables=[F, F])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(program, [v, v])
    assert "two of its variables are " in _first(error)
    # Its locks are free again.
    call(_ADD, [v], [tf.constant(1.0)])
    assert v.numpy().tolist() == [2.0, 3.0]


def test_a_variable_that_is_gone():
    handle = tf.raw_ops.VarHandleOp(dtype=F, shape=[2], shared_name="gone", container="")

    class Gone:
        pass

    gone = Gone()
    gone.handle = handle
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=F)
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        call(_ADD, [gone], [tf.zeros([2])])
    assert (
        "Error while reading resource variable gone. This could mean that the variable has been "
        "deleted or is not initialized. "
    ) in _first(error)


_HOSTILE = """
import random, sys
from tests import scripted
import tensorflow as tf
from tf_fuse import _native
from tf_fuse.v1 import update_pb2

ops = ["ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AddN", "Mul", "Sqrt", "Cast",
       "Select", "Identity", "Reshape", "Less", "x", "OnesLike"]
types = [1, 1, 1, 1, 2, 3, 10, 14, 19, 7, -5]
operation = _native.load().tf_fuse_elementwise_update
v, w = tf.Variable([1.0, 2.0, 3.0]), tf.Variable([1.0, 2.0, 3.0])
ran = 0
for seed in range(int(sys.argv[1])):
    r = random.Random(seed)
    wild = r.random() < 0.3

    def number(n):
        return r.choice([-1, n, n + 1, 2**31 - 1]) if wild and r.random() < 0.1 else r.randrange(n)

    program = update_pb2.UpdateProgram(size=3, variable_types=[1, 1], input_types=[1, 10])
    if wild:
        program.size = r.choice([-1, 0, 1, 3, 2**40, 2**63 - 1])
    for i in range(r.randrange(1, 12)):
        op = r.choice(ops)
        n = {"ReadVariableOp": 0, "Mul": 2, "Less": 2, "Select": 3}.get(op, 1)
        n = r.randrange(12) if op == "AddN" or (wild and r.random() < 0.1) else n
        inputs = [number(2 + i) for _ in range(n)]
        if op == "Select" and inputs:
            inputs[0] = 1
        program.steps.add(op=op, inputs=inputs, variable=number(2),
                          type=r.choice(types) if wild else {"Less": 10}.get(op, 1))
    program.results.extend(number(2 + len(program.steps)) for _ in range(r.randrange(3)))
    if r.random() < 0.5:
        program.rows = r.choice([3, 3, 1, 2, 0, -1, 2**62]) if wild else 3
        program.index_types.append(r.choice([3, 3, 9, 1]) if wild else 3)
        program.row_sums.add(input=number(1), indices=number(1), op=r.choice(["", "Square", "x"]))
    data = bytearray(program.SerializeToString())
    if r.random() < 0.2:
        data[r.randrange(len(data))] = r.randrange(256)
    kinds = [tf.float32 if r.random() < 0.9 else tf.bool for _ in program.results]
    try:
        numbers = [tf.constant([2, -1, r.choice([0, 2, 3])])] if program.index_types else []
        operation(variables=[v.handle, w.handle], begun=[],
                  inputs=[tf.ones([3]), tf.constant(True), *numbers],
                  Tout=kinds, shapes=[[3]] * len(kinds), program=bytes(data))
        ran += 1
    except (tf.errors.OpError, UnicodeDecodeError):
        pass
scripted.give(ran)
"""


def test_hostile_programs(isolated_env):
    env = isolated_env | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    assert scripted.result_of([sys.executable, "-c", _HOSTILE, "3000"], env) > 50


def test_a_program_without_an_end_is_none():
    """Whatever its size, a program takes the time of the memory that it gets."""
    program = program_of(2**63 - 1, [step_of("Neg", [0], dtype=F)], inputs=[F])
    with pytest.raises(tf.errors.InvalidArgumentError, match="neither assignments nor results"):
        call(program, (), [tf.constant(1.0)])
