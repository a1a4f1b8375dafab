# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operation that does an update has the bits of TensorFlow's kernels."""

import ctypes
import itertools
import os
import platform
import subprocess
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_cases import slow, slow_but
from tests.unit.kernels.elementwise_programs import assign, call, program_of, read, step_of
from tf_fuse import _native
from tf_fuse.sharded_variable.shard_spec import window

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
# On aarch64, TensorFlow's compiler chose other instructions for the last elements of these.
_LEFT_OUT = (
    [(op, tf.float32) for op in ("Maximum", "Minimum", "Tanh")]
    if platform.machine() == "aarch64"
    else []
)
# (A block is of 512.)
_SIZES = (1, 7, 8, 9, 511, 512, 516, 4097, 70001)
_LONG = os.environ.get("TF_FUSE_TEST_UPDATES") in ("1", "all")  # `make updates`: every size to 4097


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


def _values(dtype, size, seed, denormals=True):
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
    if not denormals:
        special = [one for one in special if abs(one) != tiny / 4]
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
        step = step_of(op, range(len(operands)), dtype=result)
        program = program_of(size, [step], inputs=types, results=[len(operands)])
        stock = tf.function(lambda *tensors: _stock(op, result, *tensors), autograph=False)
        ours = tf.function(
            lambda *tensors: call(program, (), tensors, [result])[0], autograph=False
        )
        # (Grappler would make other operations of constants.)
        assert _same(ours(*operands), stock(*operands)), (op, types, size)

    return compare


def _same(ours, theirs):
    return ours.shape.num_elements() == theirs.shape.num_elements() and _bits(ours) == _bits(theirs)


def test_there_are_as_many_as_expected():
    assert len(list(_all_ops())) == 209 - len(_LEFT_OUT)


@pytest.mark.parametrize(("op", "operand", "result"), list(_all_ops()))
def test_bits_of_each_operation(op, operand, result):
    types = _operand_types(op, operand)
    for size in _SIZES:
        operands = [_values(dtype, size, seed) for seed, dtype in enumerate(types)]
        step = step_of(op, range(len(types)), dtype=result)
        program = program_of(size, [step], inputs=types, results=[len(types)])
        (ours,) = call(program, (), operands, [result])
        assert _bits(ours) == _bits(_stock(op, result, *operands)), size


@pytest.mark.parametrize(
    ("op", "operand", "result"), [case for case in _all_ops() if case[0] in _BINARY]
)
def test_bits_with_a_scalar(op, operand, result):
    for size in (9, 4097):
        tensor = _values(operand, size, 1)
        for scalar in _values(operand, 12, 2):
            for operands in ([tensor, scalar], [scalar, tensor]):
                program = program_of(
                    size, [step_of(op, (0, 1), dtype=result)], inputs=(operand,) * 2, results=[2]
                )
                (ours,) = call(program, (), operands, [result])
                assert _bits(ours) == _bits(_stock(op, result, *operands)), (size, operands)


def test_logarithm_of_a_negative_number_has_the_sign_of_the_nan_of_tensorflow():
    """The two versions of `log` in glibc differ in it; TensorFlow calls the older one."""
    numbers = tf.constant([-1.0, -np.inf, 2.0], tf.double)  # Fewer than a packet.
    step = step_of("Log", (0,), dtype=tf.double)
    program = program_of(3, [step], inputs=[tf.double], results=[1])
    (ours,) = call(program, (), [numbers], [tf.double])
    assert ours.numpy().tobytes() == tf.raw_ops.Log(x=numbers).numpy().tobytes()


@pytest.mark.parametrize("op", ["Mul", "AddV2", "Sqrt", "Rsqrt", "Div", "Exp", "Log", "Tanh"])
@pytest.mark.parametrize("dtype", _REAL)
def test_bits_in_functions(in_functions, op, dtype):
    if (op, dtype) in _LEFT_OUT:
        assert not _has(op, dtype, dtype)
        return
    types = _operand_types(op, dtype)
    for size in (9, 70001):
        in_functions(op, dtype, [_values(kind, size, seed) for seed, kind in enumerate(types)])


# (Those of 16 bits are computed as float32.)
_SOME_OF_BFLOAT16 = ("AddV2", "Div", "Exp", "Less", "Maximum", "Mul", "Pow", "Rsqrt", "Tanh")


@pytest.mark.parametrize(
    ("op", "dtype"),
    slow_but(
        itertools.product([*_UNARY, *_BINARY], [tf.float32, tf.bfloat16]),
        lambda case: case[1] == tf.float32 or case[0] in _SOME_OF_BFLOAT16,
    ),
)
def test_bits_of_zeros_and_denormals_behind_the_last_packet(op, dtype):
    """Of numbers from which one instruction may make something else than another."""
    results = [to for to in (dtype, tf.bool, tf.double) if _has(op, dtype, to)]
    if not results:
        assert op.startswith("Logical") or (op, dtype) in [("Cast", tf.bfloat16), *_LEFT_OUT]
        return
    (result, *_), types = results, _operand_types(op, dtype)
    tiny = float(np.finfo(np.float32).tiny) / 4
    numbers = [0.0, -0.0, tiny, -tiny, 1.0, -1.0, np.inf, -np.inf, np.nan]
    pairs = np.array([[a, b] for a in numbers for b in numbers]).astype(dtype.as_numpy_dtype)
    step = step_of(op, range(len(types)), dtype=result)
    program = program_of(3, [step], inputs=types, results=[len(types)])

    @tf.function(autograph=False)
    def both(*operands):
        # (In a function: TensorFlow's threads take denormals for zero.)
        return call(program, (), operands, [result])[0], _stock(op, result, *operands)

    for i in range(0, len(pairs), 3):
        left, right = map(tf.constant, pairs[i : i + 3].T)
        forms = [(left, right), *((left, one) for one in right), *((one, right) for one in left)]
        for operands in forms if len(types) == 2 else [(right,)]:
            ours, stock = both(*operands)
            assert _bits(ours) == _bits(stock), (operands, ours, stock)


@pytest.mark.parametrize("dtype", [*_REAL, tf.int32, tf.int64])
def test_sums_of_many(dtype):
    for count in (*range(1, 20), 25, 26, 33):
        terms = [_values(dtype, 100, seed) for seed in range(count)]
        program = program_of(
            100, [step_of("AddN", range(count), dtype=dtype)],
            inputs=[dtype] * count, results=[count],
        )  # fmt: skip
        (ours,) = call(program, (), terms, [dtype])
        assert _bits(ours) == _bits(tf.raw_ops.AddN(inputs=terms)), count


# What TensorFlow, oneDNN, XLA and the C library choose by the processor, limited: how, and to what.
_INSTRUCTIONS = {
    "oneDNN off, no FMA": {
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
        "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL": "0",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    },
    "oneDNN with SSE 4.1, XLA with AVX": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX",
    },
}


@pytest.mark.parametrize(
    ("dtype", "far"),
    [
        # (7, 37 and 111 are prime to what a packet and a block have.)
        *((dtype, 111) for dtype in _REAL),
        *(slow(dtype, 37) for dtype in _REAL),
        slow(tf.float32, 1 if _LONG else 7),
    ],
)
def test_bits_of_every_size(dtype, far):
    """All operations at once: packets, what is behind the last one, and borders of blocks."""
    unary = [op for op in _UNARY if op != "Cast" and _has(op, dtype, dtype)]
    binary = [op for op in _BINARY if _has(op, dtype, dtype)]
    assert len(unary) > 8 and len(binary) > 8
    steps = [step_of(op, [0], dtype=dtype) for op in unary]
    steps += [step_of(op, operands, dtype=dtype) for op in binary for operands in ([0, 1], [0, 2])]
    results = range(3, 3 + len(steps))
    sizes = range(1, 4098, far) if far > 7 else [*range(1, 600), *range(600, 4098, far)]
    for size in sizes:
        # (From some size on stock TensorFlow computes in threads, which take denormals for zero.)
        operands = [_values(dtype, size, seed, denormals=False) for seed in (1, 2)]
        operands.append(_values(dtype, 4, size, denormals=False)[0])
        program = program_of(size, steps, inputs=[dtype] * 3, results=results)
        ours = call(program, (), operands, [dtype] * len(steps))
        stock = [_stock(op, dtype, operands[0]) for op in unary]
        stock += [_stock(op, dtype, operands[0], operands[i]) for op in binary for i in (1, 2)]
        names = [*unary, *(op for op in binary for _ in range(2))]
        different = {n for n, a, b in zip(names, ours, stock, strict=True) if _bits(a) != _bits(b)}
        assert not different, size


@pytest.mark.parametrize("far", [195, slow(65)])
@pytest.mark.parametrize("dtype", _REAL)
def test_bits_of_a_part(dtype, far):
    """What a replica computes of a weight, in a window around its elements, is as in the whole."""
    rng = np.random.default_rng(5)
    step = step_of("Rsqrt", [0], dtype=dtype)
    for size in range(2, 4098, far):
        whole = tf.abs(_values(dtype, size, 1))
        expected = tf.raw_ops.Rsqrt(x=whole)
        for count in (2, 3, 8):
            borders = [0, *sorted(rng.integers(0, size + 1, count - 1).tolist()), size]
            for own in itertools.pairwise(borders):
                begin, end = window(own, size)
                if begin == end:
                    continue
                program = program_of(end - begin, [step], inputs=[dtype], results=[1])
                (ours,) = call(program, (), [whole[begin:end]], [dtype])
                ours = ours[own[0] - begin : own[1] - begin]
                assert _bits(ours) == _bits(expected[own[0] : own[1]]), (size, own)


@pytest.mark.parametrize("which", ["not slow", slow("slow")])
@pytest.mark.parametrize("instructions", slow_but(_INSTRUCTIONS, "oneDNN off, no FMA".__eq__))
def test_bits_with_other_instructions(instructions, which):
    """Instructions are chosen when a process begins, so there is one for each choice."""
    tests = ["-k", "test_bits_of_every_size or test_bits_of_a_part", "-m", which]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, *tests],
        env={**os.environ, **_INSTRUCTIONS[instructions]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:]


@pytest.mark.parametrize("size", [1_500_000, 3_000_001])
def test_an_update_that_several_threads_divide(size):
    v = tf.Variable(_values(tf.float32, size, 1))
    gradient, rate = _values(tf.float32, size, 2), tf.constant(0.3)
    before = v.numpy().copy()
    program = program_of(
        size,
        [
            read(),  # 2
            step_of("Sub", [0, 2], dtype=tf.float32),  # 3
            step_of("Mul", [3, 1], dtype=tf.float32),  # 4
            step_of("Sqrt", [4], dtype=tf.float32),  # 5
            assign(4, kind="Add"),  # 6
        ],
        variables=[tf.float32],
        inputs=[tf.float32] * 2,
        results=[5],
    )
    (root,) = call(program, [v], [gradient, rate], [tf.float32])
    added = tf.multiply(tf.subtract(gradient, before), rate)
    assert _bits(root) == _bits(tf.sqrt(added))
    assert _bits(v) == _bits(tf.add(before, added))
