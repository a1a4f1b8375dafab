# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the fuse_recv pass fuses, what it leaves and why, and what the graphs look like after."""

import random

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    W1,
    const,
    groups,
    node,
    nodes_of,
    pair,
    partitions,
    recv,
    send,
    skips,
    sorted_groups,
    source,
    structure,
    trace,
    two,
    use,
    v1,
    verdicts,
)
from tf_fuse.explain import rewrite


def test_graph_before_and_after():
    add = node("sum", "AddN", ["recv_x", "recv_y"], W0, T=tf.float32, N=2)
    result = rewrite(partitions(*two(), add))
    server = ["send_x = _Send(x)", "send_y = _Send(y)", "x = Placeholder()", "y = Placeholder()"]
    assert {k: structure(g) for k, g in result.before.items()} == {
        PS0: server,
        W0: ["recv_x = _Recv()", "recv_y = _Recv()", "sum = AddN(recv_x, recv_y)"],
    }
    name = "tf_fuse/ps_0_to_worker_0/depth_1"
    assert {k: structure(g) for k, g in result.after.items()} == {
        PS0: server,
        W0: [f"sum = AddN({name}, {name}:1)", f"{name} = _FuseRecv()"],
    }
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert fused.device == W0
    assert list(fused.attr["tensor_types"].list.type) == [tf.float32.as_datatype_enum] * 2
    assert fused.attr["tensor_names"].list.s == [b"x", b"y"]
    assert fused.attr["send_device"].s.decode() == PS0
    assert fused.attr["recv_device"].s.decode() == W0
    assert fused.attr["send_device_incarnation"].i == 1
    assert fused.attr["client_terminated"].b is False
    assert fused.attr["copy_out"].list.b == []
    (group,) = result.report.groups
    assert (group.node, group.send_device, group.recv_device) == (name, PS0, W0)
    assert group.depth == 1
    assert [(s.tensor_name, s.dtype, s.sender_node, s.recv_node) for s in group.slots] == [
        ("x", "float", "x", "recv_x"),
        ("y", "float", "y", "recv_y"),
    ]
    assert not result.report.skips
    assert result.report.partitions == 2
    assert result.report.local_receives == 0


def test_both_directions_and_several_tasks():
    def build():
        weights = [source(on, f"w{i}_{t}") for t, on in enumerate((PS0, PS1)) for i in range(2)]
        for t, worker in enumerate((W0, W1)):
            gradients = [use(worker, f"g{i}_{t}", w) for i, w in enumerate(weights)]
            for i, gradient in enumerate(gradients):
                with tf.device((PS0, PS1)[i // 2]):
                    tf.identity(gradient, name=f"update{i}_{t}")

    result = rewrite(trace(build))
    assert sorted_groups(result) == [
        ["g0_0", "g1_0"],
        ["g0_1", "g1_1"],
        ["g2_0", "g3_0"],
        ["g2_1", "g3_1"],
        ["w0_0", "w1_0"],
        ["w0_0", "w1_0"],
        ["w0_1", "w1_1"],
        ["w0_1", "w1_1"],
    ]
    assert [(g.depth, g.node) for g in result.report.groups] == [
        (1, "tf_fuse/ps_0_to_worker_0/depth_1"),
        (1, "tf_fuse/ps_0_to_worker_1/depth_1"),
        (1, "tf_fuse/ps_1_to_worker_0/depth_1"),
        (1, "tf_fuse/ps_1_to_worker_1/depth_1"),
        (2, "tf_fuse/worker_0_to_ps_0/depth_2"),
        (2, "tf_fuse/worker_0_to_ps_1/depth_2"),
        (2, "tf_fuse/worker_1_to_ps_0/depth_2"),
        (2, "tf_fuse/worker_1_to_ps_1/depth_2"),
    ]
    assert skips(result) == {}
    for graph in result.after.values():
        assert not nodes_of(graph, "_Recv")


def test_chain_worker_server_worker_is_split_by_depth():
    # The lookup of an embedding: keys go to the server, rows come back. The weights that the server
    # sends at once must not wait for the rows.
    def build():
        weights = [source(PS0, name) for name in ("w0", "w1")]
        keys = [source(W0, name) for name in ("k0", "k1")]
        rows = [use(PS0, f"r{i}", k) for i, k in enumerate(keys)]
        use(W0, "loss", *weights, *rows)

    result = rewrite(trace(build))
    found = {tuple(g): r.depth for g, r in zip(groups(result), result.report.groups, strict=True)}
    assert found == {("w0", "w1"): 1, ("k0", "k1"): 1, ("r0", "r1"): 2}


def test_receives_within_a_task_are_no_rpcs():
    other = "/job:worker/replica:0/task:0/device:CPU:1"
    result = rewrite(partitions(*two(other, W0)))
    assert result.report.local_receives == 2
    assert not result.report.groups
    assert not result.report.skips
    assert result.after == result.before


def test_control_edges_go_to_the_fused_receive_and_on_from_it():
    nodes = [
        *two()[:3],
        send("y", "y", PS0, W0),
        const("first", W0),
        const("second", W0),
        recv("x", PS0, W0, control=("first",)),
        recv("y", PS0, W0, control=("first", "second")),
        node("after_x", "NoOp", ["^recv_x"], W0),
        node("after_y", "Identity", ["recv_y", "^recv_x"], W0, T=tf.float32),
    ]
    result = rewrite(partitions(*nodes))
    name = "tf_fuse/ps_0_to_worker_0/depth_1"
    assert structure(result.after[W0]) == [
        f"after_x = NoOp(^{name})",
        f"after_y = Identity({name}:1, ^{name})",
        "first = Placeholder()",
        "second = Placeholder()",
        f"{name} = _FuseRecv(^first, ^second)",
    ]


def test_control_edges_across_tasks_are_received_together():
    def build():
        with tf.device(PS0):
            first, second = v1.placeholder(tf.float32, (), "p"), v1.placeholder(tf.float32, (), "q")
        with tf.device(W0):
            for i, value in enumerate((first, second)):
                with tf.control_dependencies([value]):
                    tf.no_op(f"after{i}")

    result = rewrite(trace(build))
    assert list(map(len, groups(result))) == [2]
    assert skips(result) == {}


def test_values_of_different_types_share_a_group():
    nodes = two()
    nodes += [const("z", PS0, tf.int64), *pair("z", "z", PS0, W0, dtype=tf.int64)]
    result = rewrite(partitions(*nodes))
    assert groups(result) == [["x", "y", "z"]]
    assert [s.dtype for s in result.report.groups[0].slots] == ["float", "float", "int64"]


def test_depth_counts_control_edges_too():
    # y is received only after b came, which the server sends only after x has arrived there.
    nodes = [
        const("x", W0),
        *pair("x", "x", W0, PS0),
        const("y", PS0),
        const("z", PS0),
        node("b", "Identity", ["recv_x"], PS0, T=tf.float32),
        *pair("b", "b", PS0, W0),
        send("y", "y", PS0, W0),
        recv("y", PS0, W0, control=("recv_b",)),
        *pair("z", "z", PS0, W0),
    ]
    assert verdicts(rewrite(partitions(*nodes))) == dict.fromkeys("bxyz", "alone")


def _late_group(*more):
    """On W0: l, alone at depth 1, beside x and y at depth 2; one node per use in `more`."""
    return [
        const("w", W0),
        *pair("w", "w", W0, PS0),
        *(node(name, "Identity", ["recv_w"], PS0, T=tf.float32) for name in "xy"),
        const("l", PS0),
        *(n for name in "xyl" for n in pair(name, name, PS0, W0)),
        node("sum", "AddN", ["recv_x", "recv_y"], W0, T=tf.float32, N=2),
        *more,
    ]


def _add_late(name, *inputs):
    data = [i for i in inputs if not i.startswith("^")]
    return node(name, "AddN", list(inputs), W0, T=tf.float32, N=len(data))


@pytest.mark.parametrize(
    "uses",
    [
        [_add_late("r", "recv_l", "sum")],
        [_add_late("r", "recv_l", "recv_x")],
        [_add_late("r", "sum", "^recv_l")],
        [_add_late("r", "recv_l", "sum"), _add_late("s", "recv_l", "recv_y")],
        # What only hands it on is looked through.
        [
            node("i", "Identity", ["recv_l"], W0, T=tf.float32),
            node("j", "StopGradient", ["i"], W0, T=tf.float32),
            _add_late("r", "i", "sum"),
            _add_late("s", "j", "recv_x"),
        ],
    ],
)
def test_a_lone_receive_comes_with_a_group_that_its_uses_wait_for(uses):
    result = rewrite(partitions(*_late_group(*uses)))
    assert groups(result) == [["l", "x", "y"]]
    assert result.report.groups[0].depth == 2
    assert skips(result) == {"alone": ["w"]}


@pytest.mark.parametrize(
    "uses",
    [
        [],
        [_add_late("r", "recv_l")],
        [node("i", "Identity", ["recv_l"], W0, T=tf.float32)],
        [node("i", "Identity", ["recv_l"], W0, T=tf.float32), _add_late("r", "i")],
        [_add_late("r", "recv_l"), _add_late("s", "r", "sum")],
        [_add_late("r", "recv_l", "sum"), _add_late("s", "recv_l")],
        # The use is itself a receive of depth 2, which waits for nothing of depth 2.
        [const("k", PS1), send("k", "k", PS1, W0), recv("k", PS1, W0, control=("recv_l",))],
    ],
)
def test_a_lone_receive_does_not_wait_longer_than_its_uses(uses):
    result = rewrite(partitions(*_late_group(*uses)))
    assert groups(result) == [["x", "y"]]
    assert skips(result)["alone"][-2:] == ["l", "w"]


def test_two_lone_receives_become_a_group():
    nodes = [n for n in _late_group(_add_late("r", "recv_l", "recv_x")) if "y" not in n.name]
    nodes = [n for n in nodes if n.name != "sum"]
    assert groups(rewrite(partitions(*nodes))) == [["l", "x"]]


def test_lone_receives_of_other_devices_stay_alone():
    nodes = _late_group(_add_late("r", "recv_l", "recv_m", "sum"))
    nodes += [const("m", PS1), *pair("m", "m", PS1, W0)]
    result = rewrite(partitions(*nodes))
    assert groups(result) == [["l", "x", "y"]]
    assert skips(result) == {"alone": ["m", "w"]}


def test_names_that_are_taken_are_not_used_again():
    name = "tf_fuse/ps_0_to_worker_0/depth_1"
    result = rewrite(partitions(*two(), const(name, PS0)))
    assert [g.node for g in result.report.groups] == [f"{name}_1"]


def test_order_of_nodes_in_the_file_does_not_matter():
    def build():
        weights = [source(on, f"w{t}{i}") for t, on in enumerate((PS0, PS1)) for i in range(3)]
        results = [use(W0, f"r{i}", w) for i, w in enumerate(weights)]
        use(PS0, "back", *results)

    graph = trace(build)
    first = rewrite(graph)
    rng = random.Random(0)
    for _ in range(5):
        shuffled = rng.sample(list(graph.node), len(graph.node))
        again = rewrite(graph_pb2.GraphDef(versions=graph.versions, node=shuffled))
        assert sorted_groups(again) == sorted_groups(first)
        assert [g.node for g in again.report.groups] == [g.node for g in first.report.groups]


def test_incarnations_are_kept_apart():
    nodes = two()
    for n in nodes:
        if n.name in ("send_y", "recv_y"):
            n.attr["send_device_incarnation"].i = 2
    assert skips(rewrite(partitions(*nodes))) == {"alone": ["x", "y"]}


def _blocked(make_waiting):
    """Values x, y that hang on nothing, and a, b that hang on what `make_waiting` makes on PS0."""

    def build():
        values = [source(PS0, name) for name in ("x", "y")]
        with tf.device(PS0):
            waiting = make_waiting()
            late = [tf.identity(waiting, name=name) for name in ("a", "b")]
        use(W0, "sum", *values, *late)

    return sorted_groups(rewrite(trace(build)))


def _dequeue(queue=None):
    # From outside, since the op that makes a queue counts as one that may wait.
    queue = v1.placeholder(tf.resource, ()) if queue is None else queue
    (taken,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])
    return tf.ensure_shape(taken, [2])


def test_what_may_wait_for_another_step_is_kept_apart():
    assert _blocked(_dequeue) == [["a", "b"], ["x", "y"]]


def test_what_may_wait_inside_a_loop_is_kept_apart():
    # The dequeued value reaches the exit only by going round.
    def loop():
        queue = v1.placeholder(tf.resource, ())
        return v1.while_loop(
            lambda i, _: i < 3,
            lambda i, a: (i + 1, a + _dequeue(queue)),
            [tf.constant(0), tf.zeros([2])],
        )[1]

    assert _blocked(loop) == [["a", "b"], ["x", "y"]]


def test_what_may_wait_inside_a_function_is_kept_apart():
    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def waits(queue):
        return _dequeue(queue)

    assert _blocked(lambda: waits(v1.placeholder(tf.resource, ()))) == [["a", "b"], ["x", "y"]]


_WAITING = {
    "Unstage": lambda: tf.raw_ops.Unstage(dtypes=[tf.float32])[0],
    "StagePeek": lambda: tf.raw_ops.StagePeek(index=0, dtypes=[tf.float32])[0],
    "MapUnstage": lambda: tf.raw_ops.MapUnstage(key=1, indices=[0], dtypes=[tf.float32])[0],
    "OrderedMapPeek": lambda: tf.raw_ops.OrderedMapPeek(key=1, indices=[0], dtypes=[tf.float32])[0],
    "Batch": lambda: tf.raw_ops.Batch(
        in_tensors=[tf.zeros([2])],
        num_batch_threads=1,
        max_batch_size=2,
        batch_timeout_micros=1,
        grad_timeout_micros=1,
    ).batched_tensors[0],
    "a stateless call": lambda: tf.raw_ops.PartitionedCall(
        args=[], Tout=[tf.float32], f=_no_argument.get_concrete_function()
    )[0],
    "a stateful operation that is not known": lambda: tf.fill(
        [2], tf.cast(tf.strings.length(tf.raw_ops.RecordInput(file_pattern="x")), tf.float32)
    ),
}


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _no_argument():
    return tf.zeros([2])


@pytest.mark.parametrize("op", _WAITING)
def test_operations_that_may_wait(op):
    assert _blocked(lambda: tf.ensure_shape(_WAITING[op](), [2])) == [["a", "b"], ["x", "y"]]


_ENDING = {
    "matmul of a batch": lambda: tf.linalg.matmul(tf.zeros([2, 1, 3]), tf.zeros([2, 3, 1]))[
        :, 0, 0
    ],
    "batch norm": lambda: tf.nn.batch_normalization(tf.zeros([2]), 0.0, 1.0, None, None, 1e-3),
    "variable": lambda: tf.raw_ops.ReadVariableOp(
        resource=tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2]), dtype=tf.float32
    ),
    "table": lambda: tf.raw_ops.LookupTableFindV2(
        table_handle=tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.float32),
        keys=tf.constant([1, 2], tf.int64),
        default_value=0.0,
    ),
}


@pytest.mark.parametrize("op", _ENDING)
def test_operations_that_end_by_themselves(op):
    assert _blocked(lambda: tf.ensure_shape(_ENDING[op](), [2])) == [["a", "b", "x", "y"]]


def test_a_branch_that_waits_is_no_wait_if_it_is_not_taken():
    # m waits for the queue only where p is true; what fills the queue may use it.
    def build():
        with tf.device(PS0):
            x, p = v1.placeholder(tf.float32, [2]), v1.placeholder(tf.bool, ())
            taken = _dequeue()
            branches = tf.raw_ops.Switch(data=x, pred=p)
            merged = tf.raw_ops.Merge(
                inputs=[branches.output_false, tf.add_n([branches.output_true, taken])]
            ).output
            m = [tf.identity(merged, name=name) for name in ("m", "n")]
            z = [tf.identity(tf.add_n([taken, x]), name=name) for name in ("y", "z")]
        use(W0, "sum", *m, *z)

    assert sorted_groups(rewrite(trace(build))) == [["m", "n"], ["y", "z"]]


def test_a_loop_that_waits_is_no_wait_if_it_is_not_gone_round():
    def build():
        with tf.device(PS0):
            queue = v1.placeholder(tf.resource, ())
            taken = _dequeue(queue)
            _, out = v1.while_loop(
                lambda i, _: i < v1.placeholder(tf.int32, ()),
                lambda i, a: (i + 1, a + _dequeue(queue)),
                [tf.constant(0), tf.ensure_shape(taken, [2])],
            )
            m = [tf.identity(out, name=name) for name in ("m", "n")]
            z = [tf.identity(taken, name=name) for name in ("y", "z")]
        use(W0, "sum", *m, *z)

    assert sorted_groups(rewrite(trace(build))) == [["m", "n"], ["y", "z"]]


@pytest.mark.parametrize(
    ("early_waits", "late_waits", "use_waits", "joins"),
    [
        (False, False, False, True),
        (True, False, True, False),
        (False, True, False, False),
        (False, True, True, True),
        (True, True, True, True),
    ],
)
def test_a_lone_receive_joins_only_what_hangs_on_no_more(early_waits, late_waits, use_waits, joins):
    def build():
        with tf.device(PS0):
            taken = _dequeue()
            early = tf.identity(taken, "l") if early_waits else source(PS0, "l")
        with tf.device(W0):
            back = tf.identity(source(W0, "w"), "back")
        with tf.device(PS0):
            late = [tf.add_n([back, taken] if late_waits else [back, back], n) for n in "xy"]
        with tf.device(W0):
            # As deep as x and y without them: another value that went to the server and back.
            again = use(PS1, "again", use(W0, "there", source(PS1, "k")))
            tf.add_n([early, *(late if use_waits else [again])], "sum")
            tf.add_n(late, "other")

    result = rewrite(trace(build))
    assert sorted_groups(result) == [["l", "x", "y"] if joins else ["x", "y"]]


def test_an_op_that_waits_for_nothing_keeps_nothing_apart():
    assert _blocked(lambda: tf.random.uniform([2])) == [["a", "b", "x", "y"]]


def test_what_waits_for_different_queues_is_kept_apart():
    def build():
        values = []
        with tf.device(PS0):
            taken = [_dequeue() for _ in range(2)]
            values += [tf.identity(taken[0], "a0"), tf.identity(taken[1], "a1")]
            values += [tf.identity(taken[0], "b0"), tf.identity(taken[1], "b1")]
            values += [tf.add_n(taken, "c0"), tf.add_n(taken, "c1")]
        use(W0, "sum", *values)

    assert sorted_groups(rewrite(trace(build))) == [["a0", "b0"], ["a1", "b1"], ["c0", "c1"]]


@pytest.mark.parametrize(
    ("graph", "error", "text"),
    [
        ("text", TypeError, "graph must be a tf.compat.v1.GraphDef or a mapping .*, got str"),
        ({}, ValueError, "there is no partition: the mapping is empty"),
        (graph_pb2.GraphDef(), ValueError, "no node of the graph names a device of a job"),
        (partitions(const("x", W0), const("x", W0)), ValueError, "'x'"),
        (partitions(send("x", "none", PS0, W0)), ValueError, "'none'"),
    ],
)
def test_graphs_that_cannot_be_read(graph, error, text):
    with pytest.raises(error, match=text):
        rewrite(graph)


def test_options_that_are_not_known():
    with pytest.raises(ValueError, match="'depth', 'all' or 'any_frame', got 'size'"):
        rewrite(partitions(*two()), grouping="size")
    graph = graph_pb2.GraphDef(node=[const("x", PS0)])
    with pytest.raises(ValueError, match="default_device is 'CPU:0', which names no device of a"):
        rewrite(graph, default_device="CPU:0")
    with pytest.raises(ValueError, match="default_device is '/job:ps', but a graph that is part"):
        rewrite(partitions(*two()), default_device="/job:ps")


def test_receive_without_an_attribute_that_it_needs():
    nodes = two()
    (broken,) = (n for n in nodes if n.name == "recv_x")
    del broken.attr["tensor_name"]
    with pytest.raises(ValueError, match="tensor_name"):
        rewrite(partitions(*nodes))
