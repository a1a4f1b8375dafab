# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rewritten function that takes packed handles, as a FunctionDef."""

import pytest
from google.protobuf import text_format
from tensorflow.core.framework import function_pb2, tensor_shape_pb2

from tf_fuse.parameter_server.lookups.handle_packing import packed_definition

_PS0 = "/job:ps/replica:0/task:0/device:CPU:0"
_PS1 = "/job:ps/replica:0/task:1/device:CPU:0"

_SHAPES = {
    position: tensor_shape_pb2.TensorShapeProto(
        dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=size)]
    )
    for position, size in ((1, 10), (2, 20), (4, 40))
}

_FUNCTION = """
signature {
  name: "f"
  input_arg { name: "x" type: DT_FLOAT }
  input_arg { name: "a" type: DT_RESOURCE }
  input_arg { name: "b" type: DT_RESOURCE }
  input_arg { name: "y" type: DT_INT32 }
  input_arg { name: "c" type: DT_RESOURCE }
  output_arg { name: "out" type: DT_FLOAT }
  output_arg { name: "handle" type: DT_RESOURCE }
  control_output: "done"
}
arg_attr { key: 1 value { attr { key: "_user" value { s: "handle" } } } }
arg_attr { key: 3 value { attr { key: "_user" value { s: "y" } } } }
resource_arg_unique_id { key: 1 value: 7 }
node_def {
  name: "read_a" op: "ReadVariableOp" input: "a" input: "^b"
  attr { key: "_class" value { list { s: "loc:@a" s: "loc:@x" } } }
}
node_def { name: "read_c" op: "ReadVariableOp" input: "c" input: "^read_a" }
node_def { name: "sum" op: "AddV2" input: "read_a:value:0" input: "x" }
ret { key: "out" value: "sum:z:0" }
ret { key: "handle" value: "b" }
control_ret { key: "done" value: "read_c" }
"""


@pytest.fixture
def definition():
    return text_format.Parse(_FUNCTION, function_pb2.FunctionDef())


@pytest.fixture
def rewritten(definition):
    # Positions 1, 2 and 4 hold a float, a double and an int32 variable.
    values = {1: (1, _SHAPES[1]), 2: (2, _SHAPES[2]), 4: (3, _SHAPES[4])}
    return packed_definition(definition, [(_PS0, [1, 4]), (_PS1, [2])], values)


def _node(function, name):
    (node,) = [node for node in function.node_def if node.name == name]
    return node


def test_signature(rewritten):
    assert rewritten.signature.name == "f__tf_fuse_packed"
    assert [(arg.name, arg.type) for arg in rewritten.signature.input_arg] == [
        ("x", 1),
        ("y", 3),
        ("tf_fuse_pack_0", 21),
        ("tf_fuse_pack_1", 21),
    ]


def test_results_and_control_results(definition, rewritten):
    assert list(rewritten.signature.output_arg) == list(definition.signature.output_arg)
    assert dict(rewritten.ret) == {"out": "sum:z:0", "handle": "tf_fuse_unpack_1:handles:0"}
    assert dict(rewritten.control_ret) == {"done": "read_c"}


def test_argument_attributes_move_with_their_argument(rewritten):
    assert list(rewritten.arg_attr) == [1]
    assert rewritten.arg_attr[1].attr["_user"].s == b"y"
    assert not rewritten.resource_arg_unique_id


def test_unpack_nodes_are_where_the_variables_are(rewritten):
    for number, device, types, sizes in ((0, _PS0, [1, 3], [10, 40]), (1, _PS1, [2], [20])):
        node = _node(rewritten, f"tf_fuse_unpack_{number}")
        assert node.op == "TfFuse>UnpackHandles"
        assert node.device == device
        assert list(node.input) == [f"tf_fuse_pack_{number}"]
        assert node.attr["N"].i == len(types)
        assert list(node.attr["dtypes"].list.type) == types
        assert [shape.dim[0].size for shape in node.attr["shapes"].list.shape] == sizes


def test_inputs_controls_and_colocation_follow(rewritten):
    read_a = _node(rewritten, "read_a")
    assert list(read_a.input) == ["tf_fuse_unpack_0:handles:0", "^tf_fuse_unpack_1"]
    assert list(read_a.attr["_class"].list.s) == [b"loc:@tf_fuse_unpack_0", b"loc:@x"]
    assert list(_node(rewritten, "read_c").input) == ["tf_fuse_unpack_0:handles:1", "^read_a"]
    assert list(_node(rewritten, "sum").input) == ["read_a:value:0", "x"]


def test_function_itself_is_not_changed(definition, rewritten):
    assert definition == text_format.Parse(_FUNCTION, function_pb2.FunctionDef())
    assert len(rewritten.node_def) == len(definition.node_def) + 2
