# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operation that does an update: the bits of TensorFlow's kernels, one lock, exact errors."""

import ctypes
import os
import re
import subprocess
import sys
import threading

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

from tf_fuse import _native
from tf_fuse.v1 import update_pb2

_OPERATION = "TfFuse>ElementwiseUpdate"
_REAL = (tf.float32, tf.float64, tf.half, tf.bfloat16)
_TYPES = (*_REAL, tf.int32, tf.int64, tf.bool)
_UNARY = (
    "Abs", "Cast", "Exp", "Inv", "IsFinite", "IsInf", "IsNan", "Log", "LogicalNot", "Neg",
    "OnesLike", "Reciprocal", "Rsqrt", "Sign", "Sqrt", "Square", "Tanh", "ZerosLike",
)  # fmt: skip
_BINARY = (
    "Add", "AddV2", "Div", "DivNoNan", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual",
    "LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "NotEqual", "Pow",
    "RealDiv", "SquaredDifference", "Sub",
)  # fmt: skip
_CHOICES = ("Select", "SelectV2")
# (A block is of 512.)
_SIZES = (1, 7, 8, 9, 511, 512, 516, 4097, 70001)


def _has(op, operand, result):
    function = _native.library().tf_fuse_has_block_op
    function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_char_p] + [ctypes.c_int] * 2
    return bool(function(op.encode(), operand.as_datatype_enum, result.as_datatype_enum))


def _all_ops():
    for op in (*_UNARY, *_BINARY, *_CHOICES):
        for operand in _TYPES:
            for result in _TYPES:
                if _has(op, operand, result):
                    yield op, operand, result


def _step(op, inputs=(), variable=0, dtype=None):
    return update_pb2.UpdateStep(
        op=op, inputs=inputs, variable=variable, type=dtype.as_datatype_enum if dtype else 0
    )


def _program(size, steps, *, variables=(), inputs=(), results=()):
    return update_pb2.UpdateProgram(
        size=size,
        steps=steps,
        variable_types=[dtype.as_datatype_enum for dtype in variables],
        input_types=[dtype.as_datatype_enum for dtype in inputs],
        results=results,
    )


def _call(program, variables=(), inputs=(), result_types=(), shapes=None):
    if isinstance(program, update_pb2.UpdateProgram):
        size, program = program.size, program.SerializeToString()
        shapes = [[size]] * len(result_types) if shapes is None else shapes
    return _native.load().tf_fuse_elementwise_update(
        variables=[variable.handle for variable in variables],
        inputs=list(inputs),
        begun=[],
        Tout=list(result_types),
        shapes=shapes or [],
        program=program,
    )


def _bits(tensor):
    """The bits of a tensor, with one kind of NaN.

    Of two NaNs the result has one's sign and payload; which one's is the C++ compiler's choice.
    """
    tensor = tf.convert_to_tensor(tensor)
    array = tensor.numpy().copy()
    if tensor.dtype.is_floating:
        array[np.isnan(array)] = tensor.dtype.as_numpy_dtype(1)
        return array.tobytes() + np.isnan(tensor.numpy()).tobytes()
    return array.tobytes()


def _values(dtype, size, seed):
    """Numbers of all kinds; the special ones are in other places for each seed."""
    rng = np.random.default_rng(seed)
    if dtype == tf.bool:
        return tf.constant(rng.integers(0, 2, size) == 1)
    if dtype.is_integer:
        low, high = dtype.min, dtype.max
        special = [0, 1, -1, low, high, low + 1]
        return tf.constant(
            np.where(
                rng.random(size) < 0.3,
                rng.choice(special, size),
                rng.integers(-1000, 1000, size),
            ).astype(dtype.as_numpy_dtype)
        )
    tiny = float(np.finfo(np.float32).tiny if dtype == tf.bfloat16 else _tiny(dtype))
    special = [
        np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, tiny / 4, -tiny / 4, 1.0, -1.0,
        float(dtype.max), float(dtype.min), 0.5, 2.0,
    ]  # fmt: skip
    numbers = rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)
    chosen = np.where(rng.random(size) < 0.3, rng.choice(special, size), numbers)
    with np.errstate(over="ignore"):
        return tf.constant(chosen.astype(dtype.as_numpy_dtype))


def _tiny(dtype):
    return np.finfo(dtype.as_numpy_dtype).tiny


def _stock(op, result, *operands):
    """What TensorFlow's kernel makes of some tensors."""
    if op == "Cast":
        return tf.raw_ops.Cast(x=operands[0], DstT=result)
    if op == "Select":
        return tf.raw_ops.Select(condition=operands[0], x=operands[1], y=operands[2])
    if op == "SelectV2":
        return tf.raw_ops.SelectV2(condition=operands[0], t=operands[1], e=operands[2])
    names = ("x",) if len(operands) == 1 else ("x", "y")
    return getattr(tf.raw_ops, op)(**dict(zip(names, operands, strict=True)))


def _operand_types(op, operand):
    return (tf.bool, operand, operand) if op in _CHOICES else (operand,) * (2 - (op in _UNARY))


@pytest.fixture(scope="module")
def in_functions():
    """Compares in functions: threads of TensorFlow's take denormals for zero, Python's do not."""

    def compare(op, result, operands):
        size = max(int(tf.size(operand)) for operand in operands)
        types = [operand.dtype for operand in operands]
        step = _step(op, range(len(operands)), dtype=result)
        program = _program(size, [step], inputs=types, results=[len(operands)])
        stock = tf.function(lambda *tensors: _stock(op, result, *tensors), autograph=False)
        ours = tf.function(
            lambda *tensors: _call(program, (), tensors, [result])[0], autograph=False
        )
        # (Grappler would make other operations of constants.)
        assert _same(ours(*operands), stock(*operands)), (op, types, size)

    return compare


def _same(ours, theirs):
    return ours.shape.num_elements() == theirs.shape.num_elements() and _bits(ours) == _bits(theirs)


def test_there_are_as_many_as_expected():
    assert len(list(_all_ops())) == 209


@pytest.mark.parametrize(("op", "operand", "result"), list(_all_ops()))
def test_bits_of_each_operation(op, operand, result):
    types = _operand_types(op, operand)
    for size in _SIZES:
        operands = [_values(dtype, size, seed) for seed, dtype in enumerate(types)]
        step = _step(op, range(len(types)), dtype=result)
        program = _program(size, [step], inputs=types, results=[len(types)])
        (ours,) = _call(program, (), operands, [result])
        assert _bits(ours) == _bits(_stock(op, result, *operands)), size


@pytest.mark.parametrize(
    ("op", "operand", "result"), [case for case in _all_ops() if case[0] in _BINARY]
)
def test_bits_with_a_scalar(op, operand, result):
    for size in (9, 4097):
        tensor = _values(operand, size, 1)
        for scalar in _values(operand, 12, 2):
            for operands in ([tensor, scalar], [scalar, tensor]):
                program = _program(
                    size, [_step(op, (0, 1), dtype=result)], inputs=(operand,) * 2, results=[2]
                )
                (ours,) = _call(program, (), operands, [result])
                assert _bits(ours) == _bits(_stock(op, result, *operands)), (size, operands)


@pytest.mark.parametrize("op", ["Mul", "AddV2", "Sqrt", "Rsqrt", "Div", "Exp", "Log", "Tanh"])
@pytest.mark.parametrize("dtype", _REAL)
def test_bits_in_functions(in_functions, op, dtype):
    types = _operand_types(op, dtype)
    for size in (9, 70001):
        in_functions(op, dtype, [_values(kind, size, seed) for seed, kind in enumerate(types)])


@pytest.mark.parametrize("dtype", [*_REAL, tf.int32, tf.int64])
def test_sums_of_many(dtype):
    for count in (*range(1, 20), 25, 26, 33):
        terms = [_values(dtype, 100, seed) for seed in range(count)]
        program = _program(
            100, [_step("AddN", range(count), dtype=dtype)],
            inputs=[dtype] * count, results=[count],
        )  # fmt: skip
        (ours,) = _call(program, (), terms, [dtype])
        assert _bits(ours) == _bits(tf.raw_ops.AddN(inputs=terms)), count


def _variable(*numbers, dtype=tf.float32):
    return tf.Variable(numbers, dtype=dtype)


def _read(variable=0, dtype=tf.float32):
    return _step("ReadVariableOp", (), variable, dtype)


def _assign(value, variable=0, kind=""):
    return _step(f"Assign{kind}VariableOp", [value], variable)


def test_reads_before_between_and_after_assignments():
    v = _variable(1.0, 2.0)
    program = _program(
        2,
        [
            _read(),  # 1
            _assign(0, kind="Add"),  # 2
            _read(),  # 3
            _assign(3, kind="Add"),  # 4: twice what it was
            _assign(1, kind="Sub"),  # 5: less the first value
            _read(),  # 6
        ],
        variables=[tf.float32],
        inputs=[tf.float32],
        results=[1, 3, 6, 0],
    )
    results = _call(program, [v], [tf.constant([10.0, 20.0])], [tf.float32] * 4)
    assert [result.numpy().tolist() for result in results] == [
        [1.0, 2.0], [11.0, 22.0], [21.0, 42.0], [10.0, 20.0],
    ]  # fmt: skip
    assert v.numpy().tolist() == [21.0, 42.0]


def test_an_update_that_several_threads_divide():
    size = 3_000_001
    v = tf.Variable(_values(tf.float32, size, 1))
    gradient, rate = _values(tf.float32, size, 2), tf.constant(0.3)
    before = v.numpy().copy()
    program = _program(
        size,
        [
            _read(),  # 2
            _step("Sub", [0, 2], dtype=tf.float32),  # 3
            _step("Mul", [3, 1], dtype=tf.float32),  # 4
            _step("Sqrt", [4], dtype=tf.float32),  # 5
            _assign(4, kind="Add"),  # 6
        ],
        variables=[tf.float32],
        inputs=[tf.float32] * 2,
        results=[5],
    )
    (root,) = _call(program, [v], [gradient, rate], [tf.float32])
    added = tf.multiply(tf.subtract(gradient, before), rate)
    assert _bits(root) == _bits(tf.sqrt(added))
    assert _bits(v) == _bits(tf.add(before, added))


def test_variables_that_change_places():
    a, b = _variable(1.0, 2.0), _variable(3.0, 4.0)
    program = _program(
        2, [_read(0), _read(1), _assign(1, 0), _assign(0, 1)], variables=[tf.float32] * 2
    )
    _call(program, [a, b])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([3.0, 4.0], [1.0, 2.0])


@pytest.mark.parametrize("size", [1, 70001])
def test_who_has_read_the_value_keeps_it(size):
    v, w = tf.Variable(tf.ones([size])), tf.Variable(tf.zeros([size]))
    w.assign(v)  # (They share memory.)
    before = v.read_value()
    program = _program(
        size, [_read(0), _assign(0, 0, "Add"), _assign(0, 1, "Add")], variables=[tf.float32] * 2
    )
    for _ in range(2):
        _call(program, [v, w])
    assert set(before.numpy()) == {1.0}
    assert set(v.numpy()) == {4.0}
    assert set(w.numpy()) == {4.0}


def test_results_are_no_variables():
    v = _variable(1.0, 2.0)
    program = _program(2, [_read()], variables=[tf.float32], results=[0, 0])
    first, second = _call(program, [v], [], [tf.float32] * 2)
    v.assign_add([1.0, 1.0])
    assert first.numpy().tolist() == second.numpy().tolist() == [1.0, 2.0]


def test_no_elements():
    v = tf.Variable(tf.zeros([0]))
    program = _program(0, [_read(), _assign(0, kind="Add")], variables=[tf.float32], results=[0])
    (result,) = _call(program, [v], [], [tf.float32])
    assert result.shape == [0]


def test_values_that_live_long_have_registers_of_their_own():
    count = 40
    steps = [_step("AddV2", (0, i), dtype=tf.float32) for i in range(count)]
    steps += [_step("AddV2", (i, count + 1 - i + 1), dtype=tf.float32) for i in range(2, count)]
    program = _program(5, steps, inputs=[tf.float32], results=range(1, count + 1))
    results = _call(program, (), [tf.ones([5])], [tf.float32] * count)
    assert [float(result[4]) for result in results] == [i + 2.0 for i in range(count)]


F, D, B = tf.float32, tf.float64, tf.bool
_WRONG = [
    (_program(-1, []), "size -1"),
    (_program(1, [_read()] * 10001, variables=[F]), "more than 10000 values"),
    (_program(1, [], inputs=[tf.string]), "an input of type 7"),
    (_program(1, [], variables=[tf.uint8]), "a variable of type 4"),
    (_program(1, []), "neither assignments nor results"),
    (_program(1, [_read()], variables=[F]), "neither assignments nor results"),
    (_program(1, [_step("Neg", [1], dtype=F)], inputs=[F]),
     "a step 0 (Neg) that reads value 1 of 1"),
    (_program(1, [_step("Neg", [-1], dtype=F)], inputs=[F]),
     "a step 0 (Neg) that reads value -1 of 1"),
    (_program(1, [_step("Neg", [0], dtype=F)], inputs=[F], results=[2]), "result 2 of 2 values"),
    (_program(1, [_read(), _assign(0), _step("Neg", [1], dtype=F)], variables=[F]),
     "a step 2 (Neg) that reads value 1, which is an assignment's"),
    (_program(1, [_read(), _assign(0)], variables=[F], results=[1]),
     "result 1, which is an assignment's"),
    (_program(1, [_step("Neg", [0], dtype=tf.string)], inputs=[F]), "a step 0 (Neg) of type 7"),
    (_program(1, [_step("Identity", [0], dtype=D)], inputs=[F]),
     "a step 0 (Identity) that needs one input of its type"),
    (_program(1, [_step("Reshape", [0, 0], dtype=F)], inputs=[F]),
     "a step 0 (Reshape) that needs one input of its type"),
    (_program(1, [_read(1)], variables=[F]), "a step 0 (ReadVariableOp) of variable 1 of 1"),
    (_program(1, [_read(-1)], variables=[F]), "a step 0 (ReadVariableOp) of variable -1 of 1"),
    (_program(1, [_step("ReadVariableOp", [0])], variables=[F], inputs=[F]),
     "a step 0 (ReadVariableOp) with 1 inputs"),
    (_program(1, [_assign(0)], variables=[F], inputs=[D]),
     "a step 0 (AssignVariableOp) that needs one input of type float"),
    (_program(1, [_step("AssignVariableOp")], variables=[F]),
     "a step 0 (AssignVariableOp) that needs one input of type float"),
    (_program(1, [_assign(0, kind="Add")], variables=[B], inputs=[B]),
     "a step 0 (AssignAddVariableOp) of type bool"),
    (_program(1, [_step("Neg", dtype=F)]), "a step 0 (Neg) without inputs"),
    (_program(1, [_step("MatMul", [0], dtype=F)], inputs=[F]),
     "a step 0 (MatMul) of float to float, which is not supported"),
    (_program(1, [_step("Mul", [0], dtype=F)], inputs=[F]),
     "a step 0 (Mul) with 1 inputs, not 2"),
    (_program(1, [_step("Mul", [0, 1], dtype=F)], inputs=[F, D]),
     "a step 0 (Mul) whose input 1 is double, not float"),
    (_program(1, [_step("Select", [0, 0, 0], dtype=F)], inputs=[F]),
     "a step 0 (Select) whose input 0 is float, not bool"),
    (_program(1, [_step("AddN", dtype=F)]), "a step 0 (AddN) without inputs"),
    (_program(1, [_step("AddN", [0], dtype=D)], inputs=[F]),
     "a step 0 (AddN) of float to type 2"),
    (_program(1, [_step("AddN", [0], dtype=B)], inputs=[B]), "a step 0 (AddN) of bool to type 10"),
    (_program(1, [_step("AddN", [0, 1], dtype=F)], inputs=[F, D]),
     "a step 0 (AddN) whose input 1 is double, not float"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "what"), _WRONG)
def test_wrong_programs(program, what):
    inputs = [tf.zeros([1], F) for _ in program.input_types]
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(program, (), inputs)
    assert f"{_OPERATION}: the program has {what}" in error.value.message.split("\n")[0]
    assert f"the program has {what}" in _first(error)


def _first(error):
    """An error without what TensorFlow adds to it."""
    return re.sub(r" \[Op:.*", "", error.value.message.split("\n")[0])


def test_bytes_that_are_no_program():
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(b"\xff\xff\xff")
    assert f"{_OPERATION}: the program does not parse" in _first(error)


def test_an_operation_that_is_not_as_its_program():
    program = _program(2, [_read()], variables=[F], inputs=[D], results=[1])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(program, (), [tf.zeros([2])], [tf.int32])
    assert (
        f"{_OPERATION}: the program is of 1 variables, inputs of [double] and results of [float]; "
        "the operation has 0, [float] and [int32] of 1 shapes"
    ) in _first(error)


def test_a_result_of_another_size():
    program = _program(2, [_read()], variables=[F], results=[0])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(program, [_variable(1.0, 2.0)], [], [F], shapes=[[3]])
    assert f"{_OPERATION}: a result of shape [3], but 2 elements" in _first(error)


def test_results_without_shapes():
    program = _program(2, [_read()], variables=[F], results=[0])
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as error:
        tf.function(lambda: _call(program, [_variable_of_2()], [], [F], shapes=[]))()
    assert f"{_OPERATION}: 1 results, but 0 shapes" in str(error.value)


_kept = []


def _variable_of_2():
    if not _kept:
        with tf.init_scope():
            _kept.append(_variable(1.0, 2.0))
    return _kept[0]


_ADD = _program(2, [_assign(0, kind="Add")], variables=[F], inputs=[F])


def test_an_input_of_another_size():
    v = _variable(1.0, 2.0)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(_ADD, [v], [tf.zeros([3])])
    assert "input 0 has the shape [3], but the update is of 2 elements" in _first(error)
    assert v.numpy().tolist() == [1.0, 2.0]


def test_a_variable_of_another_size_or_type():
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(_ADD, [_variable(1.0, 2.0, 3.0)], [tf.zeros([2])])
    assert "variable 0 is float of shape [3], but the update is of float and 2 elements" in _first(
        error
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(_ADD, [_variable(1.0, 2.0, dtype=D)], [tf.zeros([2])])
    assert "variable 0 is double of shape [2], but the update is of float and 2 elements" in _first(
        error
    )


def test_one_variable_as_two():
    v = _variable(1.0, 2.0)
    program = _program(2, [_read(0), _assign(0, 1)], variables=[F, F])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _call(program, [v, v])
    assert "two of its variables are " in _first(error)
    # Its locks are free again.
    _call(_ADD, [v], [tf.constant(1.0)])
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
        _call(_ADD, [gone], [tf.zeros([2])])
    assert (
        "Error while reading resource variable gone. This could mean that the variable has been "
        "deleted or is not initialized. "
    ) in _first(error)


_HOSTILE = """
import random, sys
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
    data = bytearray(program.SerializeToString())
    if r.random() < 0.2:
        data[r.randrange(len(data))] = r.randrange(256)
    kinds = [tf.float32 if r.random() < 0.9 else tf.bool for _ in program.results]
    try:
        operation(variables=[v.handle, w.handle], inputs=[tf.ones([3]), tf.constant(True)],
                  begun=[], Tout=kinds, shapes=[[3]] * len(kinds), program=bytes(data))
        ran += 1
    except (tf.errors.OpError, UnicodeDecodeError):
        pass
print("ran", ran)
"""


def test_hostile_programs(isolated_env):
    done = subprocess.run(
        [sys.executable, "-c", _HOSTILE, "3000"],
        env=isolated_env | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 50


def test_a_program_without_an_end_is_none():
    """Whatever its size, a program takes the time of the memory that it gets."""
    program = _program(2**63 - 1, [_step("Neg", [0], dtype=F)], inputs=[F])
    with pytest.raises(tf.errors.InvalidArgumentError, match="neither assignments nor results"):
        _call(program, (), [tf.constant(1.0)])


def test_steps_on_many_threads_are_one_after_the_other():
    """Each leaves w as the sum of all that m has been: an update in between would be missed."""
    threads, steps, size = 8, 25, 20000
    m = tf.Variable(tf.zeros([size], tf.int64))
    w = tf.Variable(tf.zeros([size], tf.int64))
    program = _program(
        size,
        [_assign(0, 0, "Add"), _read(0, tf.int64), _assign(2, 1, "Add"), _read(1, tf.int64)],
        variables=[tf.int64] * 2,
        inputs=[tf.int64],
        results=[2, 4],
    )
    one, torn, begin = tf.constant(1, tf.int64), [], threading.Barrier(threads)

    def work():
        begin.wait()
        for _ in range(steps):
            seen = [t.numpy() for t in _call(program, [m, w], [one], [tf.int64] * 2)]
            n = int(seen[0][0])
            if set(seen[0]) != {n} or set(seen[1]) != {n * (n + 1) // 2}:
                torn.append(n)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    total = threads * steps
    assert torn == []
    assert set(m.numpy()) == {total}
    assert set(w.numpy()) == {total * (total + 1) // 2}
