# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The verifier of sharded updates finds each thing that could be wrong with one."""

import os
import re

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.shard_update.update_jobs import REPLICAS, reduce_over
from tf_fuse.shard_update.pipeline import shard_update
from tf_fuse.shard_update.replicas import Replicas
from tf_fuse.shard_update.verify.verifier import Original, verify

_FLOAT64 = 2


class _Job:
    """A function with two all-reduces, one behind the other; the update of the first is sharded."""

    def __init__(self):
        self.w, self.m = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.zeros([4, 3]))
        self.count = tf.Variable(0.0)

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([4, 3]), tf.TensorSpec([2])])
        def function(dw, losses):
            total = reduce_over(dw, key=1)
            with tf.control_dependencies([total]):
                loss = reduce_over(losses, key=2)
            self.m.assign(0.9 * self.m + total)
            self.w.assign_sub(0.1 * self.m)
            self.count.assign_add(1.0)
            return loss * 2

        concrete = function.get_concrete_function()
        self.original = Original(concrete.function_def, concrete.graph, lambda name: None)
        names = [argument.name for argument in concrete.function_def.signature.input_arg]
        by_handle = {id(t): n for n, t in zip(names[2:], concrete.captured_inputs, strict=True)}
        self.name_of = {
            key: by_handle[id(getattr(self, key).handle)] for key in ("w", "m", "count")
        }
        mirrored = [self.name_of["w"], self.name_of["m"]]
        self.plan = shard_update(self.original, Replicas(REPLICAS, {"": 0}), mirrored, "parts/")
        self.rewritten = self.plan.function

    def of(self, op, variable=""):
        """The rewritten function's nodes of an operation, of a variable if one is named."""
        first = self.name_of.get(variable)
        nodes = [node for node in self.rewritten.node_def if node.op == op]
        return [node for node in nodes if first is None or node.input[0] == first]

    def verify(self):
        return verify(self.original, self.rewritten, self.plan.shards)


def _reads_nothing(job):
    (node,) = job.of("AssignVariableOp", "w")
    node.input[1] = "gone:0"


def _reads_no_output(job):
    (node,) = job.of("AssignVariableOp", "w")
    node.input[1] = job.of("TfFuse>AllGather")[0].name + ":outputs:7"


def _waits_for_nothing(job):
    job.of("AssignVariableOp", "w")[0].input.append("^gone")


def _returns_nothing(job):
    job.rewritten.ret[job.rewritten.signature.output_arg[0].name] = "gone:0"


def _ends_with_nothing(job):
    key = min(job.rewritten.control_ret)
    job.rewritten.control_ret[key] = "gone"


def _twice(job):
    job.rewritten.node_def.add().CopyFrom(job.of("TfFuse>AllGather")[0])


def _no_operation(job):
    job.of("AssignVariableOp", "w")[0].op = "NoSuchOperation"


def _cycle(job):
    (scatter,), (gather,) = job.of("TfFuse>ReduceScatter"), job.of("TfFuse>AllGather")
    scatter.input.append(f"^{gather.name}")


def _other_signature(job):
    job.rewritten.signature.output_arg[0].type = _FLOAT64


def _other_type(job):
    (node,) = job.of("AssignVariableOp", "w")
    node.attr["dtype"].type = _FLOAT64


def _mixed_types(job):
    job.of("TfFuse>AllGather")[0].attr["T"].type = _FLOAT64


def _other_result(job):
    (result,) = job.rewritten.ret
    job.rewritten.ret[result] = job.of("TfFuse>ReduceScatter")[0].name + ":shards:0"


def _other_weight(job):
    (node,) = job.of("AssignVariableOp", "w")
    node.input[1] = job.of("TfFuse>ReduceScatter")[0].name + ":shards:0"


def _two_writers(job):
    node = job.rewritten.node_def.add()
    node.CopyFrom(job.of("AssignVariableOp", "w")[0])
    node.name = "again"


def _no_writer(job):
    (node,) = job.of("AssignAddVariableOp", "count")
    node.op, node.input[:] = "NoOp", []
    node.attr.clear()


def _reads_slot(job):
    node = job.rewritten.node_def.add(name="read", op="ReadVariableOp")
    node.input.append(job.name_of["m"])
    node.attr["dtype"].type = 1


def _writes_slot(job):
    (handle,) = job.of("VarHandleOp")
    for node in job.of("AssignVariableOp"):
        if node.input[0] == f"{handle.name}:resource:0":
            node.input[0] = job.name_of["m"]


def _reads_shape_of_slot(job):
    node = job.rewritten.node_def.add(name="shape", op="VariableShape")
    node.input.append(job.name_of["m"])


def _part_is_never_written(job):
    (handle,) = job.of("VarHandleOp")
    for node in job.of("AssignVariableOp"):
        if node.input[0] == f"{handle.name}:resource:0":
            node.op, node.input[:] = "NoOp", []
            node.attr.clear()
    (gather,), (scatter,) = job.of("TfFuse>AllGather"), job.of("TfFuse>ReduceScatter")
    gather.input.append(f"^{scatter.name}")


def _other_part(job):
    job.of("VarHandleOp")[0].attr["shape"].shape.dim[0].size = 5


def _no_reduce(job):
    (node,) = job.of("CollectiveReduceV2")
    node.op, node.input[1:] = "Identity", []
    node.attr.clear()
    node.attr["T"].type = 1
    for other in job.rewritten.node_def:
        for index, tensor in enumerate(other.input):
            if tensor == f"{node.name}:data:0":
                other.input[index] = f"{node.name}:output:0"


def _changed_reduce(job):
    job.of("CollectiveReduceV2")[0].attr["merge_op"].s = b"Max"


def _no_gather(job):
    (node,) = job.of("TfFuse>AllGather")
    (sink,) = job.of("AssignVariableOp", "w")
    job.rewritten.node_def.remove(node)
    (sink,) = job.of("AssignVariableOp", "w")
    sink.input[1] = job.rewritten.signature.input_arg[0].name


def _gather_of_others(job):
    (gather,) = job.of("TfFuse>AllGather")
    gather.input[2], gather.input[3] = gather.input[3], gather.input[2]


def _gather_in_groups(job):
    job.of("TfFuse>AllGather")[0].attr["groups"].i = 3


def _scatter_of_others(job):
    (scatter,) = job.of("TfFuse>ReduceScatter")
    scatter.input[1], scatter.input[2] = scatter.input[2], scatter.input[1]


def _early_gather(job):
    (gather,) = job.of("TfFuse>AllGather")
    part = job.rewritten.node_def.add(name="part", op="Const")
    part.attr["dtype"].type = 1
    part.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tf.zeros([12])))
    gather.input[:] = ["part:output:0", *gather.input[1:5]]


def _stray_collective(job):
    node = job.rewritten.node_def.add()
    node.CopyFrom(job.of("TfFuse>AllGather")[0])
    node.name = "stray"


def _other_order(job):
    (second,) = job.of("CollectiveReduceV2")
    (first,) = job.of("TfFuse>ReduceScatter")
    for node in job.rewritten.node_def:
        # (The keys of the second, too.)
        if node is second or node.op == "Const":
            node.input[:] = [tensor for tensor in node.input if tensor != f"^{first.name}"]


_MUTATIONS = [
    (_reads_nothing, "reads gone:0, which there is not"),
    (_reads_no_output, ":outputs:7, which there is not"),
    (_waits_for_nothing, "waits for gone, which there is not"),
    (_returns_nothing, "the function returns 'gone:0', which there is not"),
    (_ends_with_nothing, "the function waits for gone, which there is not"),
    (_twice, "have one name"),
    (_no_operation, "there is no operation NoSuchOperation"),
    (_cycle, "has a cycle in"),
    (_other_signature, "the function's output_arg is not what it was"),
    (_other_type, "TensorFlow does not take it"),
    (_mixed_types, "TensorFlow does not take it"),
    (_other_result, "the result .* has the shape"),
    (_other_weight, "TensorFlow does not take it|what .* assigns to .* has the shape"),
    (_two_writers, "is written by .*again.*, and was by"),
    (_no_writer, r"is written by \[\], and was by"),
    (_reads_slot, "read .ReadVariableOp. uses .*, which is in shards"),
    (_writes_slot, "uses .*, which is in shards|does not take it"),
    (_reads_shape_of_slot, "shape .VariableShape. uses .*, which is in shards"),
    (_part_is_never_written, "had 1 writers, and its shard has 0"),
    (_other_part, r"and the shape \[5\], not|does not take it"),
    (_no_reduce, "the collective .* is gone"),
    (_changed_reduce, r"the collective .* is not what it was"),
    (_no_gather, "is sharded, and gathered 0 times"),
    (_gather_of_others, "is of another group than"),
    (_gather_in_groups, "is in 3 groups, and .* in 1"),
    (_scatter_of_others, "is of another group than"),
    (_early_gather, "does not wait for"),
    (_stray_collective, "stray .TfFuse>AllGather. belongs to no all-reduce"),
    (_other_order, "does not wait for .* any more"),
]


def test_what_is_right_is_passed():
    job = _Job()
    assert len(job.plan.shards) == 1
    assert len(job.of("CollectiveReduceV2")) == len(job.of("TfFuse>ReduceScatter")) == 1
    assert job.verify() == ""


def test_what_is_not_sharded_is_passed():
    job = _Job()
    assert verify(job.original, job.original.definition, []) == ""


@pytest.mark.parametrize(("mutation", "text"), _MUTATIONS, ids=lambda m: getattr(m, "__name__", ""))
def test_what_is_wrong_is_found(mutation, text):
    job = _Job()
    before = job.rewritten.SerializeToString(deterministic=True)
    mutation(job)
    assert job.rewritten.SerializeToString(deterministic=True) != before
    assert re.search(text, job.verify()), job.verify()
