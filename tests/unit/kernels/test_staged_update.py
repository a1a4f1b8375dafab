# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operation that updates rows and whole variables: values, one lock, exact errors."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_fuse
from tf_fuse import _native
from tf_fuse.v1 import staged_update_pb2, update_pb2

_FLOAT = tf.float32.as_datatype_enum
_SCATTERS = {
    "ResourceScatterAdd": tf.raw_ops.ResourceScatterAdd,
    "ResourceScatterSub": tf.raw_ops.ResourceScatterSub,
    "ResourceScatterUpdate": tf.raw_ops.ResourceScatterUpdate,
}


def _numbers(*shape, dtype=tf.float32):
    return tf.cast(np.random.default_rng(3).integers(-9, 9, shape), dtype)


def _call(stages, variables, inputs, begun=(), **counted):
    if isinstance(stages, list):
        stages = staged_update_pb2.StagedUpdate(stages=stages).SerializeToString()
    return _native.load().tf_fuse_staged_update(
        variables=[variable.handle for variable in variables],
        inputs=inputs,
        begun=list(begun),
        update=stages,
        **counted,
    )


def _scatter(op="ResourceScatterAdd", variable=0, value=-2):
    return staged_update_pb2.RowScatter(op=op, variable=variable, value=value)


def _rows(*scatters, indices=0, **others):
    return staged_update_pb2.UpdateStage(
        is_by_row=True, indices=indices, scatters=scatters, **others
    )


def _whole(size, steps, variables=(0,), inputs=()):
    """A stage on variables of float32; inputs are of that type, too."""
    program = update_pb2.UpdateProgram(
        size=size, steps=steps, variable_types=[_FLOAT] * len(variables),
        input_types=[_FLOAT] * len(inputs),
    )  # fmt: skip
    return staged_update_pb2.UpdateStage(program=program, variables=variables, inputs=inputs)


_HALVE = [
    update_pb2.UpdateStep(op="ReadVariableOp", type=_FLOAT),
    update_pb2.UpdateStep(op="Mul", inputs=[1, 0], type=_FLOAT),
    update_pb2.UpdateStep(op="AssignVariableOp", inputs=[2]),
]


@pytest.mark.parametrize("index", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.half, tf.bfloat16, tf.int64])
@pytest.mark.parametrize("op", sorted(_SCATTERS))
def test_scatter_is_that_of_tensorflow(op, dtype, index):
    before, rows = _numbers(5, 3, 2, dtype=dtype), tf.constant([4, 0, 4, 4], index)
    values = _numbers(4, 3, 2, dtype=dtype) * 7
    stock, ours = tf.Variable(before), tf.Variable(before)
    _SCATTERS[op](resource=stock.handle, indices=rows, updates=values)
    _call([_rows(_scatter(op))], [ours], [rows, values])
    np.testing.assert_array_equal(ours.numpy(), stock.numpy())


@pytest.mark.parametrize("shape", [[7], [7, 1], [7, 2000]])
def test_stages_one_after_the_other(shape):
    """A slot is halved, gets rows, and its new rows are taken off the weight."""
    slot, weight = tf.Variable(_numbers(*shape)), tf.Variable(_numbers(*shape))
    rows = tf.constant([6, 2, 0])
    gradient = _numbers(3, *shape[1:]) * 8
    expected = slot * 0.5
    expected = tf.tensor_scatter_nd_add(expected, rows[:, None], gradient)
    taken = tf.gather(expected, rows) * 0.25
    less = tf.tensor_scatter_nd_sub(weight, rows[:, None], taken)
    program = update_pb2.UpdateProgram(
        size=1, input_types=[_FLOAT] * 2, results=[2],
        steps=[update_pb2.UpdateStep(op="Mul", inputs=[0, 1], type=_FLOAT)],
    )  # fmt: skip
    stages = [
        _whole(int(np.prod(shape)), _HALVE, (1,), (2,)),
        _rows(_scatter(variable=1)),
        _rows(
            _scatter("ResourceScatterSub", value=0), program=program, inputs=[-1, 3], gathered=[1]
        ),
    ]
    _call(stages, [weight, slot], [rows, gradient, 0.5, 0.25])
    np.testing.assert_array_equal(slot.numpy(), expected.numpy())
    np.testing.assert_array_equal(weight.numpy(), less.numpy())


def _flags(size, rows, indices, values):
    """A stage that joins rows in which the first variable has zeros."""
    program = update_pb2.UpdateProgram(
        size=size, variable_types=[_FLOAT], input_types=[_FLOAT], results=[2],
        steps=[
            update_pb2.UpdateStep(op="ReadVariableOp", type=_FLOAT),
            update_pb2.UpdateStep(op="Equal", inputs=[1, 0], type=tf.bool.as_datatype_enum),
        ],
    )  # fmt: skip
    return staged_update_pb2.UpdateStage(
        program=program, variables=[0], inputs=[2],
        join=staged_update_pb2.RowJoin(rows=rows, indices=indices, values=values),
    )  # fmt: skip


def _quotient(*scatters):
    """A stage that divides joined rows by those of the first variable, with three inputs before."""
    program = update_pb2.UpdateProgram(
        size=1, input_types=[_FLOAT] * 2, results=[2],
        steps=[update_pb2.UpdateStep(op="RealDiv", inputs=[0, 1], type=_FLOAT)],
    )  # fmt: skip
    return _rows(*scatters, indices=4, inputs=[3, -1], gathered=[0], program=program)


@pytest.mark.parametrize("zeros", [[], [1], [0, 3]])
def test_rows_that_others_join(zeros):
    divisor = tf.Variable(tf.fill([4, 2], 0.5))
    rows = tf.constant(zeros, tf.int32)
    divisor.scatter_update(tf.IndexedSlices(tf.zeros([len(zeros), 2]), rows))
    changed, sums = (tf.Variable(tf.ones([4, 2])) for _ in range(2))
    add = [
        update_pb2.UpdateStep(op="ReadVariableOp", type=_FLOAT),
        update_pb2.UpdateStep(op="AddV2", inputs=[1, 0], type=_FLOAT),
        update_pb2.UpdateStep(op="AssignVariableOp", inputs=[2]),
    ]
    stages = [
        _flags(8, 4, indices=0, values=1),
        _quotient(
            _scatter("ResourceScatterSub", variable=1, value=0),
            staged_update_pb2.RowScatter(op="UnsortedSegmentSum", value=0),
        ),
        # The sums are kept behind joined values and numbers.
        _whole(8, add, (2,), (5,)),
    ]
    values = tf.constant([[3.0, 4.0], [1.0, 2.0]])
    _call(stages, [divisor, changed, sums], [tf.constant([1, 2]), values, 0.0])
    expected = np.zeros([4, 2], "float32")
    expected[1:3] = values.numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = expected / divisor.numpy()
    np.testing.assert_array_equal(changed.numpy(), 1 - quotient)
    np.testing.assert_array_equal(sums.numpy(), 1 + quotient)


def test_kept_rows_are_of_the_time_before():
    """What a join's values are made of may be kept from before the variable changes."""
    variable, changed = tf.Variable(tf.fill([3, 2], 4.0)), tf.Variable(tf.zeros([3, 2]))
    before = update_pb2.UpdateProgram(size=1, input_types=[_FLOAT], results=[0])
    keep = staged_update_pb2.RowScatter(op="Identity", value=0)
    stages = [
        _rows(keep, inputs=[-1], gathered=[0], program=before),
        _whole(6, _HALVE, (0,), (1,)),
        # (Behind the two inputs.)
        _rows(
            _scatter(variable=1, value=0), inputs=[2, -1], gathered=[0],
            program=update_pb2.UpdateProgram(
                size=1, input_types=[_FLOAT] * 2, results=[2],
                steps=[update_pb2.UpdateStep(op="Sub", inputs=[0, 1], type=_FLOAT)]),
        ),
    ]  # fmt: skip
    _call(stages, [variable, changed], [tf.constant([2]), 0.5])
    np.testing.assert_array_equal(variable.numpy(), np.full([3, 2], 2.0))
    np.testing.assert_array_equal(changed.numpy(), [[0, 0], [0, 0], [2, 2]])


def test_no_rows_change_nothing():
    variable = tf.Variable(_numbers(3, 2))
    before = variable.numpy()
    _call([_rows(_scatter())], [variable], [tf.zeros([0], tf.int32), tf.zeros([0, 2])])
    np.testing.assert_array_equal(variable.numpy(), before)


def test_values_of_no_rows_may_have_any_shape():
    """As those of TensorFlow's kernel."""
    stock, ours = tf.Variable(_numbers(3, 2)), tf.Variable(_numbers(3, 2))
    rows, values = tf.zeros([0], tf.int32), tf.ones([5, 2])
    _SCATTERS["ResourceScatterAdd"](resource=stock.handle, indices=rows, updates=values)
    _call([_rows(_scatter())], [ours], [rows, values])
    np.testing.assert_array_equal(ours.numpy(), stock.numpy())


@pytest.mark.parametrize("rows", [[2, 0, 2], [1], []])
def test_one_row_stands_for_all(rows):
    variable = tf.Variable(_numbers(3, 2))
    one = tf.constant([[2.0, 3.0]])
    rows = tf.constant(rows, tf.int32)
    values = tf.gather(variable, rows) * one
    expected = tf.tensor_scatter_nd_add(variable, rows[:, None], values)
    program = update_pb2.UpdateProgram(
        size=1, input_types=[_FLOAT] * 2, results=[2],
        steps=[update_pb2.UpdateStep(op="Mul", inputs=[0, 1], type=_FLOAT)],
    )  # fmt: skip
    stage = _rows(_scatter(value=0), program=program, inputs=[-1, 1], gathered=[0])
    _call([stage], [variable], [rows, one])
    np.testing.assert_array_equal(variable.numpy(), expected.numpy())


def test_who_has_read_the_value_keeps_it():
    variable = tf.Variable(_numbers(3, 2))
    for _ in range(2):  # From the second time on, reads are copies.
        read = variable.read_value()
        before = read.numpy().copy()
        _call([_rows(_scatter())], [variable], [tf.constant([1]), tf.ones([1, 2])])
        np.testing.assert_array_equal(read.numpy(), before)
        np.testing.assert_array_equal(variable.numpy()[1], before[1] + 1)


def _summing():
    """A stage whose program would take rows."""
    stage = _whole(6, _HALVE, (0,), (1,))
    stage.program.rows = 3
    stage.program.index_types.append(tf.int32.as_datatype_enum)
    stage.program.row_sums.add(input=0, indices=0)
    return stage


_ROW, _ONE, _TWO = tf.constant([1]), tf.ones([1, 2]), _scatter()
_WRONG = {
    "does not parse": (b"\xff\xff", None),
    "rows that change nothing": ([_rows()], None),
    "a stage without a program": ([staged_update_pb2.UpdateStage()], None),
    "a scatter of value -2 to variable 1": ([_rows(_scatter(variable=1))], None),
    "a scatter of value -4 to variable 0": ([_rows(_scatter(value=-4))], None),
    "a scatter of value 0 to variable 0": ([_rows(_scatter(value=0))], None),
    "a scatter ResourceScatterMax of float": ([_rows(_scatter("ResourceScatterMax"))], None),
    "numbers of rows in input 1": ([_rows(_TWO, indices=1)], None),
    "numbers of rows in input -1": ([_rows(_TWO, indices=-1)], None),
    "variable 7 of 1": ([_rows(_TWO, gathered=[7])], None),
    "rows in a stage that is not by row": (
        [staged_update_pb2.UpdateStage(program=_whole(6, _HALVE, (0,), (1,)).program,
                                       variables=[0], inputs=[1], gathered=[0])], None),
    "a program of 1 variables in a stage of 2": (
        [staged_update_pb2.UpdateStage(program=_whole(6, _HALVE, (0,), (1,)).program,
                                       variables=[0, 0], inputs=[1])], None),
    "a program that sums rows": ([_summing()], None),
    "input 5 of 2": ([_whole(6, _HALVE, (0,), (5,))], None),
    "input -1 of 2": ([_whole(6, _HALVE, (0,), (-1,))], None),
    "in a stage of float and 5 elements": ([_whole(5, _HALVE, (0,), (1,))], None),
    "input 1 of shape [1,2] in a stage of 6 elements": ([_whole(6, _HALVE, (0,), (1,))], None),
    "indices[0] = 3 is not in [0, 3)": ([_rows(_TWO)], [tf.constant([3]), _ONE]),
    "indices[1] = -1 is not in [0, 3)": ([_rows(_TWO)], [tf.constant([0, -1]), tf.ones([2, 2])]),
    "values of shape [2,2] for 1 rows of 2 elements": ([_rows(_TWO)], [_ROW, tf.ones([2, 2])]),
    "values of shape [2] for 1 rows of 2 elements": ([_rows(_TWO)], [_ROW, tf.ones([2])]),
    "values of shape [1] for 1 rows of 2 elements": ([_rows(_TWO)], [_ROW, tf.ones([1])]),
    "values of shape [1,4] for 2 rows of 2 elements": (
        [_rows(_TWO)], [tf.constant([0, 1]), tf.ones([1, 4])]),
    "rows of no variable": (
        [_rows(staged_update_pb2.RowScatter(op="Identity", value=0), inputs=[1],
               program=update_pb2.UpdateProgram(size=1, input_types=[_FLOAT], results=[0]))], None),
    "a scatter of value -2 to variable 5": ([_rows(_scatter("Identity", 5))], None),
    "a join of 4 rows without a flag for each element": ([_flags(6, 4, 0, 1)], [_ROW, _ONE, 0.0]),
    "a join of -1 rows without a flag": ([_flags(6, -1, 0, 1)], [_ROW, _ONE, 0.0]),
    "a join of inputs 1 and 0 of": ([_flags(6, 3, 1, 0)], [_ROW, _ONE, 0.0]),
    "a join of inputs 0 and 9 of": ([_flags(6, 3, 0, 9)], [_ROW, _ONE, 0.0]),
    "values of shape [1,2] for 2 rows of 2 elements": (
        [_flags(6, 3, 0, 1)], [tf.constant([0, 1]), _ONE, 0.0]),
    "gathered rows of variable 0 that nothing reads": (
        [_rows(_scatter(value=0), gathered=[0, 0], inputs=[-2], program=update_pb2.UpdateProgram(
            size=1, input_types=[_FLOAT], results=[0]))], None),
}  # fmt: skip


@pytest.mark.parametrize("text", sorted(_WRONG))
def test_what_is_wrong_is_said_and_changes_nothing(text):
    stages, inputs = _WRONG[text]
    if inputs is not None:  # What comes before it is right.
        stages = [_whole(6, _HALVE, (0,), (2,)), *stages]
        inputs = [*inputs, 0.5]
    variable = tf.Variable(_numbers(3, 2))
    before = variable.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        _call(stages, [variable], inputs or [_ROW, _ONE])
    assert text in str(caught.value)
    np.testing.assert_array_equal(variable.numpy(), before)


def test_variable_without_a_value():
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3, 2], shared_name="no value")
    variable = type("Variable", (), {"handle": handle})
    with pytest.raises(tf.errors.FailedPreconditionError, match="Error while reading resource"):
        _call([_rows(_TWO)], [variable], [_ROW, _ONE])


def test_variable_of_another_rank():
    variable = tf.Variable(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of shape \\[\\], where rows"):
        _call([_rows(_TWO)], [variable], [_ROW, _ONE])


def test_variable_that_is_there_twice():
    variable = tf.Variable(_numbers(3, 2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="two of its variables are"):
        _call([_rows(_TWO)], [variable, variable], [_ROW, _ONE])


def test_it_is_counted_once_and_only_if_it_is_made():
    variable = tf.Variable(_numbers(3, 2), name="counted_rows")
    stages = [_whole(6, _HALVE, (0,), (2,)), _rows(_TWO), _rows(_TWO)]

    def count():
        return _native.load().tf_fuse_update_count(variable=variable.handle)

    def update(row, begun):
        _call(stages, [variable], [row, _ONE, 0.5], [begun], worker="of rows", subject=0)

    begun = count()
    assert int(begun) == 0
    update(_ROW, begun)
    with pytest.raises(tf.errors.InvalidArgumentError, match="= 3 is not in"):
        update(tf.constant([3]), begun)
    assert int(count()) == 1
    update(_ROW, begun)
    assert int(count()) == 2
    worker = tf_fuse.metrics()["server_updates"]["workers"]["of rows"]
    assert worker["updates"] == 2
    # The second one began before the first one was made.
    assert worker["staleness"][:3] == [1, 1, 0]


_number = st.integers(-4, 4)
_any_step = st.builds(
    update_pb2.UpdateStep,
    op=st.sampled_from(["Mul", "Sub", "ReadVariableOp", "AssignVariableOp", "Identity"]),
    inputs=st.lists(_number, max_size=2), variable=_number, type=st.just(_FLOAT),
)  # fmt: skip
_any_program = st.builds(
    update_pb2.UpdateProgram,
    size=st.sampled_from([-1, 0, 1, 2, 6]), steps=st.lists(_any_step, max_size=3),
    variable_types=st.lists(st.just(_FLOAT), max_size=2),
    input_types=st.lists(st.just(_FLOAT), max_size=2), results=st.lists(_number, max_size=2),
)  # fmt: skip
_any_stage = st.builds(
    staged_update_pb2.UpdateStage,
    program=st.none() | _any_program, variables=st.lists(_number, max_size=2),
    inputs=st.lists(_number, max_size=2), is_by_row=st.booleans(), indices=_number,
    gathered=st.lists(_number, max_size=2),
    scatters=st.lists(
        st.builds(
            staged_update_pb2.RowScatter,
            op=st.sampled_from([*sorted(_SCATTERS), "", "Identity", "UnsortedSegmentSum"]),
            variable=_number, value=_number,
        ),
        max_size=2,
    ),
    join=st.none() | st.builds(
        staged_update_pb2.RowJoin, rows=st.sampled_from([-1, 0, 1, 2, 3]), indices=_number,
        values=_number,
    ),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(stages=st.lists(_any_stage, max_size=3))
def test_any_message_is_done_or_refused(stages):
    variables = [tf.Variable(tf.ones([3, 2])), tf.Variable(tf.ones([3, 2]))]
    inputs = [tf.constant([2, 0]), tf.ones([2, 2]), tf.ones([6]), tf.constant(0.5)]
    try:
        _call(stages, variables, inputs)
    except tf.errors.InvalidArgumentError:
        # (What is kept is looked at when it is there.)
        if any(stage.HasField("join") or _keeps(stage) for stage in stages):
            return
        for variable in variables:
            assert (variable.numpy() == 1.0).all()


def _keeps(stage):
    return any(one.op in ("Identity", "UnsortedSegmentSum") for one in stage.scatters)
