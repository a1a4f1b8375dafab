# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs of the operation that does an update, and calls of it."""

import tensorflow as tf

from tf_fuse import _native
from tf_fuse.v1 import update_pb2

OPERATION = "TfFuse>ElementwiseUpdate"


def step_of(op, inputs=(), variable=0, dtype=None):
    """A step of a program."""
    return update_pb2.UpdateStep(
        op=op, inputs=inputs, variable=variable, type=dtype.as_datatype_enum if dtype else 0
    )


def program_of(size, steps, *, variables=(), inputs=(), results=(), rows=0, indices=(), sums=()):
    """A program; the others are types, and the numbers of results; sums are (input, vector, op)."""
    return update_pb2.UpdateProgram(
        size=size,
        steps=steps,
        variable_types=[dtype.as_datatype_enum for dtype in variables],
        input_types=[dtype.as_datatype_enum for dtype in inputs],
        results=results,
        rows=rows,
        index_types=[dtype.as_datatype_enum for dtype in indices],
        row_sums=[
            update_pb2.RowSum(input=number, indices=vector, op=op) for number, vector, op in sums
        ],
    )


def call(program, variables=(), inputs=(), result_types=(), shapes=None):
    """Runs the operation with a program, or with bytes that are to be one."""
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


def variable_of(*numbers, dtype=tf.float32):
    """A vector."""
    return tf.Variable(numbers, dtype=dtype)


def read(variable=0, dtype=tf.float32):
    """A step that reads a variable."""
    return step_of("ReadVariableOp", (), variable, dtype)


def assign(value, variable=0, kind=""):
    """A step that assigns a value, adds or subtracts it."""
    return step_of(f"Assign{kind}VariableOp", [value], variable)
