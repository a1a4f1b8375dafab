# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operation that runs small operations in turn has the values and errors of each of them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from tests.slow_cases import slow_but
from tests.unit.kernels.grouped_operations import IDS, TYPES, run, text_of
from tests.unit.passes.pass_testing import PS0, node
from tf_fuse import _native


def _scatter(name, op, dtype, ids, inputs=(":0", ":1", ":2")):
    return node(name, op, list(inputs), "", dtype=dtype, Tindices=ids)


def _outcome(of):
    """The value of the variable afterwards, or the error's type and the text of its kernel."""
    variable, call = of
    try:
        call()
    except tf.errors.OpError as error:
        return type(error), text_of(error), variable.numpy().tobytes()
    return variable.numpy().tobytes()


@pytest.mark.parametrize(
    ("op", "width"),
    slow_but(
        itertools.product(["ResourceScatterAdd", "ResourceScatterSub"], [1, 3, 16, 1000]),
        lambda case: case[0] == "ResourceScatterAdd" or case[1] == 3,
    ),
)
def test_rows_have_the_bits_and_errors_of_tensorflow(op, width):
    rng = np.random.default_rng(3)
    for dtype in TYPES:
        for ids_type in (tf.int32, tf.int64):
            for what, ids in IDS.items():
                indices = tf.constant(ids, ids_type)
                numbers = rng.standard_normal([5, width])
                # One number in all rows: which comes first is not to be seen.
                changes = rng.standard_normal([*indices.shape, width])
                if what == "in parallel":
                    changes = np.full([*indices.shape, width], 0.5)
                updates = tf.cast(changes, dtype)
                raw = getattr(tf.raw_ops, op)
                ours, stock = (tf.Variable(tf.cast(numbers, dtype)) for _ in range(2))
                for _ in range(2):  # The first sparse access is always TensorFlow's.
                    outcomes = [
                        _outcome(
                            (
                                stock,
                                lambda s=stock, i=indices, u=updates, raw=raw: raw(
                                    resource=s.handle, indices=i, updates=u
                                ),
                            )
                        ),
                        _outcome(
                            (
                                ours,
                                lambda o=ours, i=indices, u=updates, d=dtype, t=ids_type: run(
                                    [_scatter("update", op, d, t)], [o.handle, i, u]
                                ),
                            )
                        ),
                    ]
                    assert outcomes[0] == outcomes[1], (dtype, ids_type, what)


@pytest.mark.parametrize(
    "updates", [0.5, [[1.0, 2.0]], np.zeros([2, 3]), np.zeros([2, 2, 2])], ids=str
)
def test_shapes_that_differ_are_treated_as_tensorflow_does(updates):
    ours, stock = (tf.Variable([[1.0, 2.0], [3.0, 4.0]]) for _ in range(2))
    indices, values = tf.constant([0, 1]), tf.constant(updates, tf.float32)
    tf.raw_ops.ResourceScatterAdd(resource=ours.handle, indices=[0], updates=[[0.0, 0.0]])
    outcomes = [
        _outcome(
            (
                stock,
                lambda: tf.raw_ops.ResourceScatterAdd(
                    resource=stock.handle, indices=indices, updates=values
                ),
            )
        ),
        _outcome(
            (
                ours,
                lambda: run(
                    [_scatter("update", "ResourceScatterAdd", tf.float32, tf.int32)],
                    [ours.handle, indices, values],
                ),
            )
        ),
    ]
    assert outcomes[0] == outcomes[1]


def test_operations_have_their_inputs_and_results():
    table = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    body = [
        node("rows", "ResourceGather", [":0", ":1"], "", dtype=tf.float32, Tindices=tf.int32),
        node("same", "Identity", ["rows:0"], "", T=tf.float32),
        _scatter("update", "ResourceScatterSub", tf.float32, tf.int32, [":0", ":1", "same:0"]),
        node("after", "ReadVariableOp", [":0", "^update"], "", dtype=tf.float32),
        node("cast", "Cast", ["rows:0"], "", SrcT=tf.float32, DstT=tf.int32),
    ]
    rows, after, cast = run(
        body,
        [table.handle, tf.constant([2, 0])],
        ["rows:0", "after:0", "cast:0"],
        [tf.float32, tf.float32, tf.int32],
    )
    assert rows.numpy().tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert cast.numpy().tolist() == [[5, 6], [1, 2]]
    assert after.numpy().tolist() == [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]


def test_an_input_that_two_operations_have_is_not_written_over():
    """A kernel writes its result over an input that nobody else holds."""
    value = tf.reshape(tf.range(40000.0), [200, 200])
    body = [
        node("a", "Cast", [":0"], "", SrcT=tf.float32, DstT=tf.int32),
        *(node(f"i{i}", "Identity", [":0"], "", T=tf.float32) for i in range(3)),
        node("b", "Cast", ["i0:0"], "", SrcT=tf.float32, DstT=tf.float64),
    ]
    a, i, b = run(body, [value + 0.0], ["a:0", "i1:0", "b:0"], [tf.int32, tf.float32, tf.float64])
    for one in (a, i, b):
        assert np.array_equal(one.numpy(), value.numpy())


def _address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def test_what_is_only_handed_on_is_not_copied():
    value, table = tf.random.stateless_normal([300, 2], [1, 2]), tf.Variable(tf.ones([300, 2]))
    body = [
        _identity("same", ":0"),
        node("flat", "Reshape", ["same:0", ":1"], "", T=tf.float32, Tshape=tf.int32),
        node("read", "ReadVariableOp", [":2"], "", dtype=tf.float32),
        _identity("read_too", "read:0"),
    ]
    same, flat, read, read_too = run(
        body,
        [value, tf.constant([600]), table.handle],
        ["same:0", "flat:0", "read:0", "read_too:0"],
        [tf.float32] * 4,
    )
    assert [_address(same), _address(flat)] == [_address(value)] * 2
    assert _address(read_too) == _address(read)
    assert np.array_equal(flat.numpy(), np.ravel(value.numpy()))
    table.assign_add(tf.ones([300, 2]))  # Somebody else holds its memory: it gets another.
    assert read.numpy().tolist() == [[1.0, 1.0]] * 300
    assert table.numpy().tolist() == [[2.0, 2.0]] * 300


def test_much_data_is_spread_over_threads():
    """Several threads run components; each has its values, and one error is that of the group."""
    tables = [tf.Variable(tf.fill([5000, 16], float(i))) for i in range(12)]
    ids = tf.range(5000)
    changes = tf.ones([5000, 16])
    body = [
        *(
            node(
                f"rows{i}", "ResourceGather", [f":{i}", ":12"], "",
                dtype=tf.float32, Tindices=tf.int32,
            )
            for i in range(12)
        ),
        *(
            _scatter(
                f"update{i}", "ResourceScatterAdd", tf.float32, tf.int32, [f":{i}", ":12", ":13"]
            )
            for i in range(12)
        ),
    ]  # fmt: skip
    inputs = [*(table.handle for table in tables), ids, changes]
    for times in range(3):
        found = run(body, inputs, [f"rows{i}:0" for i in range(12)], [tf.float32] * 12)
        # A table is read before it is changed, as the order of the body says.
        assert [float(rows[7, 3]) for rows in found] == [i + times for i in range(12)]
    inputs[12] = tf.concat([ids[1:], [5000]], 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 5000 is not in \[0, 5000\)"):
        run(body, inputs, [f"rows{i}:0" for i in range(12)], [tf.float32] * 12)


def test_an_error_names_the_operation_and_the_variable():
    table = tf.Variable([[1.0], [2.0]], name="of/table")
    body = [
        node("x/rows", "ResourceGather", [":0", ":1"], "", dtype=tf.float32, Tindices=tf.int32),
    ]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"(?s)indices\[1\] = 9 is not in \[0, 2\) \(variable 'of/table'\).*node x/rows",
    ):
        run(body, [table.handle, tf.constant([0, 9])], ["x/rows:0"], [tf.float32])


def _identity(name, *inputs):
    return node(name, "Identity", list(inputs), "", T=tf.float32)


def _sent(name, *inputs, place=0):
    """A part of the joint send whose first tensor is t."""
    return node(
        name, "_Send", list(inputs), "",
        T=tf.float32, tensor_name=name, send_device=PS0, send_device_incarnation=1, recv_device=PS0,
        _tf_fuse_joint_send="t", _tf_fuse_joint_place=place,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "results", "text"),
    [
        (b"\xff", [], "body is not a graph"),
        ([_identity("a", ":1")], ["a:0"], "':1': there are 1"),
        ([_identity("a", "b:0")], ["a:0"], "no operation before has b:0"),
        ([_identity("a", "x")], ["a:0"], "'x' is not NAME:NUMBER"),
        ([_identity("a", ":0"), _identity("a", ":0")], ["a:0"], "two operations are named a"),
        ([_identity("a")], ["a:0"], "expected inputs 'float' do not match 0 inputs specified"),
        ([_identity("a", ":0")], ["a:1"], "'a:1': there are 1"),
        ([_identity("a", ":0")], ["a:0", "a:0"], "2 results for 1 outputs"),
        ([_identity("a", ":0")], [":0"], "an input is a result"),
        (
            [node("a", "Identity", [":0"], "", T=tf.int32)],
            ["a:0"],
            "input 0 of a is float, expected int32",
        ),
        ([_sent("a", ":0", place=1)], [], "the joint send of t has 1 tensors, and place 1 is not"),
        ([_sent("a", ":0"), _sent("b", ":0")], [], "t has 2 tensors, and place 0 is not there or"),
        ([_sent("a", ":0", place=-1)], [], "t has 1 tensors, and place -1 is not there or twice"),
        ([_sent("a")], [], "a sends 0 tensors, expected 1"),
        (
            [node("a", "_Send", [":0"], "", T=tf.float32, _tf_fuse_joint_send="t")],
            [],
            "_tf_fuse_joint_place",
        ),
        (
            [node("a", "_Recv", [], "", tensor_type=tf.float32, tensor_name="t", send_device=PS0,
                  send_device_incarnation=1, recv_device=PS0)],
            ["a:0"],
            r"operation a \(_Recv\) is asynchronous",
        ),
    ],
)  # fmt: skip
def test_malformed_bodies_are_refused(body, results, text):
    if isinstance(body, list):
        body = graph_pb2.GraphDef(node=body).SerializeToString()
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        _native.load().tf_fuse_operation_group(
            inputs=[tf.constant(1.0)],
            body=body,
            results=results,
            Tresults=[tf.float32] * bool(results),
        )


def test_a_handle_is_handed_on():
    """It cannot be copied, as tensors are that another operation must not write over."""
    variable = tf.Variable([1.0, 2.0])
    hands_on = node("same", "Identity", [":0"], "", T=tf.resource)
    (handle,) = run([hands_on], [variable.handle], ["same:0"], [tf.resource])
    read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
    assert read.numpy().tolist() == [1.0, 2.0]


# What lies between a server's variables and their updates, beside the operations above.
_UPDATES = [
    name
    for name in dir(tf.raw_ops)
    if name.startswith(("ResourceApply", "ResourceSparseApply", "ResourceScatter"))
]


def _arguments(definition):
    """An input of each argument: a variable where it is a resource, which an update changes."""
    rows = not definition.name.startswith("ResourceApply")
    is_nd = "Nd" in definition.name
    for i, argument in enumerate(definition.input_arg):
        if argument.name == "indices":
            yield tf.constant([[2], [0], [4]] if is_nd else [2, 0, 4])
        elif argument.type == tf.resource.as_datatype_enum:
            yield tf.Variable(tf.random.stateless_uniform([5, 3], [i, 7], 0.5, 1.0))
        elif argument.name in ("grad", "delta", "updates"):
            yield tf.random.stateless_uniform([3 if rows else 5, 3], [i, 8], 0.5, 1.0)
        elif argument.type_attr:
            yield tf.constant(-0.5 if argument.name == "lr_power" else 0.25)
        else:
            yield tf.constant(3, argument.type)  # a number of steps


@pytest.mark.parametrize("op", _UPDATES)
def test_each_update_of_tensorflow_has_its_values(op):
    definition = op_def_registry.get(op)
    types = {"T": tf.float32, "dtype": tf.float32, "Tindices": tf.int32}
    attributes = {attr.name: types[attr.name] for attr in definition.attr if attr.name in types}
    before = [a.numpy().tobytes() for a in _arguments(definition) if isinstance(a, tf.Variable)]
    results = []
    for grouped in (False, True):
        arguments = list(_arguments(definition))
        inputs = [a.handle if isinstance(a, tf.Variable) else a for a in arguments]
        if grouped:
            places = [f":{i}" for i in range(len(inputs))]
            run([node("update", op, places, "", **attributes)], inputs)
        else:
            names = [argument.name for argument in definition.input_arg]
            getattr(tf.raw_ops, op)(**dict(zip(names, inputs, strict=True)))
        results.append([a.numpy().tobytes() for a in arguments if isinstance(a, tf.Variable)])
    assert results[0] == results[1]
    assert results[0] != before
