# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replicas that wait for the decisions of others, which are played here."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from tensorflow.core.framework import function_pb2, op_def_pb2

from tf_fuse.shard_update.plan import Bucket, ShardedUpdate, UpdateCluster
from tf_fuse.shard_update.runtime.plan_consensus import PlanConsensus, describe, digest
from tf_fuse.sharded_variable.peers import Peers

_OWN = "/job:localhost/replica:0/task:0/device:CPU:0"
_OTHER = "/job:worker/replica:0/task:1/device:CPU:0"


class _Other:
    """Another replica: whether its option is on, and when it has decided what."""

    def __init__(self, is_on, late, text=""):
        self.is_on, self.late, self.text = is_on, late, text

    def run(self, key, build):
        what, name = key
        if what == "read":
            return self.text.encode()
        if name == "tf_fuse/plan/on":
            return self.is_on
        self.late -= 1
        return self.late < 0


def _consensus(other):
    return PlanConsensus(Peers((_OWN, _OTHER), (0,), ""), {1: other})


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setenv("TF_FUSE_PLAN_WAIT_S", "0")


def test_a_replica_with_the_option_on_is_waited_for():
    other = _Other(True, 3, describe("f_1", None, "why"))
    _consensus(other).reach(describe("f_1", None, "why"))
    assert other.late == -1


def test_a_replica_without_a_sign_of_the_option_is_an_error():
    other = _Other(False, 10**9)
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        _consensus(other).reach(describe("f_1", None, "why"))
    assert f"After 0 s (TF_FUSE_PLAN_WAIT_S) {_OTHER} has not called any function" in str(
        caught.value
    )
    assert _OWN in str(caught.value)


def test_a_replica_that_decided_otherwise_is_an_error():
    other = _Other(True, 0, describe("f_1", None, "another reason"))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"why.*another reason"):
        _consensus(other).reach(describe("f_1", None, "why"))


def test_names_that_depend_on_the_process_do_not_matter():
    theirs = _plan("other/CollectiveReduceV2", "cond_true_99")
    other = _Other(True, 0, describe("f_7", theirs, None))
    _consensus(other).reach(
        describe("f_1", _plan("reduce/CollectiveReduceV2", "cond_true_1"), None)
    )
    assert other.late == -1


def test_the_same_is_agreed_on_once():
    plan = _plan("reduce", "where")
    other = _Other(True, 0, describe("f_1", plan, None))
    consensus = _consensus(other)
    consensus.reach(describe("f_1", plan, None))
    # It has never decided about another trace.
    other.late = 10**9
    consensus.reach(describe("f_2", _plan("reduce", "where"), None))
    assert other.late == 10**9


def _plan(node, detail):
    left = UpdateCluster("split:output:0", (3,)).leave("in_branch", detail)
    clusters = [left, UpdateCluster("split:output:1", (4,))]
    return ShardedUpdate([Bucket(node, [], clusters)])


# --- Collectives ----------------------------------------------------------------------------------

_FLOAT, _HALF, _INT32 = 1, 19, 3


def _function(*reduces, name="f"):
    """A function with all-reduces.

    Of each the name, type and group key, which argument is its other key, and whom it waits for.
    """
    definition = function_pb2.FunctionDef()
    definition.signature.name = name
    for argument, dtype in [("x", _FLOAT), ("key_a", _INT32), ("key_b", _INT32)]:
        definition.signature.input_arg.add(name=argument, type=dtype)
    for node, dtype, group, key, before in reduces:
        numbers = {"size": 2, "group": group}
        for constant, value in numbers.items():
            one = definition.node_def.add(name=f"{node}_{constant}", op="Const")
            one.attr["dtype"].type = _INT32
            one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
        inputs = ["x", f"{node}_size:output:0", f"{node}_group:output:0", key]
        one = definition.node_def.add(name=node, op="CollectiveReduceV2")
        one.input.extend([*inputs, *(f"^{name}" for name in before)])
        one.attr["T"].type = dtype
        one.attr["merge_op"].s, one.attr["final_op"].s = b"Add", b"Id"
    return definition


def _sharded(function, *functions):
    """A plan to run a function, whose all-reduce `a` is of 3 and 4 elements."""
    clusters = [UpdateCluster("split:output:0", (3,)), UpdateCluster("split:output:1", (2, 2))]
    return ShardedUpdate([Bucket("a", [], clusters)], function, functions=list(functions))


def _first(*others, dtype=_FLOAT, group=1, key="key_a"):
    return ("a", dtype, group, key, others)


def _second(*others, key="key_b"):
    return ("b", _FLOAT, 1, key, others)


def _words(number, name, of="float32", elements="", group=1, argument=0):
    return (
        f"collective {number}: CollectiveReduceV2 {name}: {of}{elements}, merge_op Add, "
        f"final_op Id, group_size 2, group_key {group}, instance_key of argument {argument}"
    )


_ALL = " of 3 + 4 elements"


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (
            [_first("b"), _second()],
            (_words(0, "a", elements=_ALL), _words(0, "b", argument=1)),
        ),
        (
            [_first(dtype=_HALF), _second("a")],
            (_words(0, "a", elements=_ALL), _words(0, "a", "float16", _ALL)),
        ),
        (
            [_first(group=7), _second("a")],
            (_words(0, "a", elements=_ALL), _words(0, "a", elements=_ALL, group=7)),
        ),
        (
            [_first(key="key_b"), _second("a", key="key_a")],
            (_words(0, "a", elements=_ALL), _words(0, "a", elements=_ALL, argument=1)),
        ),
        ([_first()], (_words(1, "b", argument=1), "(nothing)")),
    ],
    ids=["order", "type", "group", "key", "fewer"],
)
def test_other_collectives_are_an_error_that_shows_both(theirs, words):
    mine, other = _sharded(_function(_first(), _second("a"))), _sharded(_function(*theirs))
    texts = [describe("f", plan, None) for plan in (mine, other)]
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        _consensus(_Other(True, 0, texts[1])).reach(texts[0])
    assert caught.value.message == (
        "tf_fuse: the replicas shard the update of the weights in different ways. "
        f"{_OWN} (digest {digest(texts[0])}): {words[0]!r}; "
        f"{_OTHER} (digest {digest(texts[1])}): {words[1]!r}. All replicas have to run the same "
        "program, with the same options and the same versions."
    )
    assert digest(texts[0]) != digest(texts[1])


def test_neither_names_nor_what_waits_for_nothing_matter():
    texts = set()
    for names in ("ab", "ba", "xy"):
        a, b = names
        function = _function((a, _FLOAT, 1, "key_a", ()), (b, _FLOAT, 1, "key_b", ()))
        # This replica has more arguments, and nodes in another order.
        function.signature.input_arg.insert(0, op_def_pb2.OpDef.ArgDef(name="more", type=_FLOAT))
        nodes = sorted(function.node_def, key=lambda node: node.name)
        del function.node_def[:]
        function.node_def.extend(nodes)
        texts.add(digest(describe("f", ShardedUpdate([], function), None)))
    shorter = _function(_first(), _second())
    texts.add(digest(describe("f", ShardedUpdate([], shorter), None)))
    assert len(texts) == 1


def _calling(inner, *, before=()):
    """A function with an all-reduce `a`, and a conditional with what another function has."""
    function = _function(_first())
    node = function.node_def.add(name="where", op="StatelessIf")
    node.input.extend(["x", "x", "key_b", "key_a", *(f"^{name}" for name in before)])
    node.attr["then_branch"].func.name = inner
    node.attr["else_branch"].func.name = "nothing"
    return function


def test_collectives_of_functions_that_are_called():
    inner = _function(_second(), name="g")
    words = [
        describe("f", plan, None, called={"g": inner}.get).splitlines()[-2:]
        for plan in (
            ShardedUpdate([], _calling("g", before=["a"])),
            # (The plan's own function comes before another one of its name.)
            ShardedUpdate([], _calling("g", before=["a"]), functions=[_function(name="g")]),
            ShardedUpdate(
                [], _calling("h", before=["a"]), functions=[_function(_second(), name="h")]
            ),
        )
    ]
    first = _words(0, "a")
    # The function's second key is the caller's first.
    second = f"collective 1: in StatelessIf 0: {_words(1, 'b').partition(': ')[2]}"
    assert [[line.partition("\t")[2] for line in one] for one in words] == [
        [first, second],
        ["f: sharded", first],
        [first, second],
    ]


def test_a_gather_says_what_is_whose():
    function = _function()
    for name, shape in {"w": [2, 3], "v": [5]}.items():
        one = function.node_def.add(name=name, op="Const")
        one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(shape, tf.int64))
    node = function.node_def.add(name="gather", op="TfFuse>AllGather")
    node.input.extend(["x", "x", "w:output:0", "v:output:0", "key_a", "key_a", "key_b"])
    node.attr["T"].type, node.attr["N"].i, node.attr["groups"].i = _FLOAT, 2, 2
    node.attr["packed"].b, node.attr["tag"].s = False, b"first_0"
    node.attr["bounds"].list.i.extend([0, 2, 6, 0, 5, 5])
    node.attr["rank"].i = 1
    last = describe("f", ShardedUpdate([], function), None).splitlines()[-1].partition("\t")[2]
    assert last == (
        "collective 0: TfFuse>AllGather gather: float32 of 6 + 5 elements, 2 tensors, "
        "tag first_0, each sharded alone, in 2 groups, bounds [0, 2, 6, 0, 5, 5], "
        "group_size of argument 0, group_key of argument 0, instance_key of argument 1"
    )
