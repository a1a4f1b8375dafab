# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operations that run as one keep values and errors, and servers have few of them."""

import collections
import sys

import pytest

from tests.cluster.fuse_recv.table_step import table_step
from tests.fault import coordinator
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
_TABLES = 10
_MORE_TABLES = (40, 300)
_STEPS = 6
_LIBRARIES = [
    "scatter",
    "keras Adam",
    "keras SGD",
    "tf_keras Adagrad",
    "tf_keras.legacy SGD",
    "tf_keras.legacy SGD with momentum",
    "large rows",
]
_SLOW = [
    "keras SGD",
    "tf_keras Adagrad",
    f"operations {_MORE_TABLES[1]}",
    f"all rows {_MORE_TABLES[1]}",
]
_MORE = pytest.mark.parametrize("more", [_MORE_TABLES[0], slow(_MORE_TABLES[1])])
_WORKER = "/job:worker/replica:0/task:0"


@pytest.fixture(scope="module")
def cases():
    return coordinator.Cases(__file__, "job", slow=_SLOW, seconds=890)


@pytest.mark.parametrize("library", slow_but(_LIBRARIES, lambda library: library not in _SLOW))
def test_values_are_those_of_stock(cases, library):
    case = cases[library]
    # Stock is not rewritten; without the option receives are fused, but not operations.
    assert case["rewritten"] == {"stock": 0, "off": 1, "on": 1}, case
    assert case["groups"]["off"] == 0 < case["groups"]["on"], case
    assert case["same"] == {"off": True, "on": True}, case
    assert case["losses"] == _STEPS


def test_gradients_of_equal_ids_are_added_up_in_the_group_of_their_update(cases):
    added_up = {"Unique", "Shape", "StridedSlice", "UnsortedSegmentSum"}
    assert {*added_up, "ResourceSparseApplyKerasMomentum"} <= set(
        cases["tf_keras.legacy SGD with momentum"]["on servers"]
    )


def test_products_with_the_rate_are_in_the_group_of_their_update(cases):
    of_servers = cases["tf_keras.legacy SGD"]["on servers"]
    assert {"Neg", "Mul", "ResourceScatterAdd"} <= set(of_servers)


def test_what_is_too_large_for_a_frame_travels_beside_it(cases):
    """Also if it has left the sender's group together with others."""
    wide = len(range(0, _TABLES, 3))
    assert cases["large rows"]["beside"] == 2 * wide * _STEPS  # rows, and their gradients


@_MORE
def test_servers_run_as_many_operations_for_many_tables(cases, more):
    few, many = (cases[f"operations {tables}"] for tables in (_TABLES, more))
    assert few["servers"] == many["servers"]
    # Of each server: lookups with their sends, and updates.
    assert [len(groups) for groups in many["servers"].values()] == [2, 2]
    assert sum(many["lookups"]) == more


@_MORE
def test_servers_run_as_many_operations_where_an_optimizer_changes_all_rows(cases, more):
    few, many = (cases[f"all rows {tables}"] for tables in (_TABLES, more))
    assert few["servers"] == many["servers"]
    # Of each server: what tells the step's beginning, lookups with their sends, and updates.
    assert [len(groups) for groups in many["servers"].values()] == [3, 3]
    # (One more counts the steps.)
    assert (few["updates"], many["updates"]) == (_TABLES + 1, more + 1)
    # No table has an operation of its own that makes its gradient dense.
    assert (few["sums"], many["sums"]) == (2 * _TABLES, 2 * more)


@_MORE
def test_a_worker_sends_as_often_for_many_tables(cases, more):
    few, many = (cases[f"operations {tables}"] for tables in (_TABLES, more))
    # Ids, and gradients that are ready at a moment of their own each.
    assert (few["sent"], many["sent"]) == (2 * _TABLES, 2 * more)
    for case in (few, many):
        assert case["sends"] == {"worker": 4, "ps": 2}  # both to each server; rows from each


@pytest.mark.parametrize("row", [-1, 50])
def test_an_error_is_that_of_tensorflow_and_names_the_variable(cases, row):
    case = cases[f"error {row}"]
    assert case["stock"]["code"] == case["on"]["code"] == "InvalidArgumentError"
    assert f"= {row} is not in [0, 50)" in case["stock"]["text"]
    assert case["on"]["text"] == f"{case['stock']['text']} (variable 'table_4')"
    assert case["after"] is True  # The job goes on.


def _main():
    import tensorflow as tf
    import tf_keras
    from tensorflow.python.eager import context

    import tf_fuse
    from tests.cluster.parameter_server import update_cases
    from tf_fuse.shard_update import interception
    from tf_fuse.v1 import update_pb2

    job = coordinator.Job("off", 1, 2)
    legacy = tf_keras.optimizers.legacy
    makers = update_cases.makers()
    makers["tf_keras.legacy SGD"] = lambda: legacy.SGD(0.1)
    makers["tf_keras.legacy SGD with momentum"] = lambda: legacy.SGD(0.1, momentum=0.9)

    modes = {"stock": (False, False), "off": (True, False), "on": (True, True)}

    def switch(mode):
        """In mode "stock" no option is on."""
        fuses, groups = modes[mode]
        options = {"do_fuse_recv": fuses, "fuse_grouping": "level", "fuse_operations": groups}
        tf.config.optimizer.set_experimental_options(options)

    def groups():
        """Those of the function that was traced last."""
        report = tf_fuse.cluster_reports()[_WORKER][-1]
        return report.get("operation_groups", [])

    def rewritten():
        """How many functions so far."""
        return job.by_task("functions")[_WORKER]

    def model(name, tables):
        # With 32 rows, more than the 1 MiB that a tensor in a frame may have.
        widths = [
            9000 if name == "large rows" and i % 3 == 0 else 1 + i % 17 for i in range(tables)
        ]
        with job.strategy.scope():
            weights = [
                tf.Variable(tf.random.stateless_normal([50, width], [1, i]), name=f"table_{i}")
                for i, width in enumerate(widths)
            ]
            own = name in ("scatter", "large rows")
            optimizer = None if own else makers[name]()
            if hasattr(optimizer, "build"):
                optimizer.build(weights)

        step = table_step(job, weights, optimizer)
        return step, lambda: [
            tf.convert_to_tensor(v).numpy()
            for v in [*weights, *(update_cases.variables_of(optimizer) if optimizer else [])]
        ]

    def ids(seed, tables):
        return tf.random.stateless_uniform([32, tables], [2, seed], maxval=50, dtype=tf.int32)

    def trained(name, mode):
        switch(mode)
        step, values = model(name, _TABLES)
        losses = [float(job.call(step, (ids(i, _TABLES),))) for i in range(_STEPS)]
        return losses, [value.tobytes() for value in values()]

    def beside():
        of_tasks = tf_fuse.cluster_metrics().values()
        return sum(counters.get("beside_tensors", 0) for counters in of_tasks)

    def compared(name):
        found = {"rewritten": {}, "groups": {}, "same": {}}
        stock = None
        for mode in modes:
            before, beside_before = rewritten(), beside()
            losses, values = trained(name, mode)
            found["rewritten"][mode] = rewritten() - before
            if mode == "stock":
                stock = losses, values
                found["losses"] = len(set(losses))
            else:
                found["groups"][mode] = len(groups())
                found["on servers"] = sorted(
                    {
                        op
                        for one in groups()
                        if "/job:ps/" in one["device"]
                        for op in one["operations"]
                    }
                )
                found["same"][mode] = (losses, values) == stock
                found["beside"] = beside() - beside_before
        return found

    def of_all_rows(tables):
        tf.config.optimizer.set_experimental_options({"fuse_weight_update": True})
        found = counted(tables, "keras Adam")
        tf.config.optimizer.set_experimental_options({"fuse_weight_update": False})
        (decision,) = interception.fuser_of(context.context()).decisions[-1:]
        sums = [
            len(update_pb2.UpdateProgram.FromString(node.attr["program"].s).row_sums)
            for node in decision.outline.function.node_def
            if node.op == "TfFuse>ElementwiseUpdate"
        ]
        return {**found, "sums": sum(sums)}

    def counted(tables, kind="scatter"):
        switch("on")
        step, _ = model(kind, tables)
        job.call(step, (ids(0, tables),))
        updates = 0
        servers = {}
        lookups = []
        sends = collections.Counter()
        sent = 0
        for group in groups():
            job_name = group["device"].split(":")[1].split("/")[0]
            sends[job_name] += group.get("sends", 0)
            if job_name == "worker":
                sent += group["operations"].get("_Send", 0)
            if "/job:ps/" in group["device"]:
                servers.setdefault(group["device"], []).append(sorted(group["operations"]))
                lookups.append(group["operations"].get("ResourceGather", 0))
                updates += group["operations"].get("TfFuse>ElementwiseUpdate", 0)
        return {
            "servers": servers, "lookups": lookups, "sends": sends, "sent": sent, "updates": updates
        }  # fmt: skip

    def error(row):
        texts = {}
        for mode in ("stock", "on"):
            switch(mode)
            step, _ = model("scatter", _TABLES)
            job.call(step, (ids(0, _TABLES),))
            wrong = tf.tensor_scatter_nd_update(ids(1, _TABLES), [[3, 4]], [row])
            try:
                job.call(step, (wrong,))
            except tf.errors.OpError as raised:
                text = raised.message[raised.message.index("indices[") :].split("[[")[0].strip()
                texts[mode] = {
                    "code": type(raised).__name__,
                    "text": text,
                }
            after = bool(job.call(step, (ids(2, _TABLES),)) > 0)
        return {**texts, "after": after}

    cases = {name: lambda name=name: compared(name) for name in _LIBRARIES}
    cases |= {f"operations {n}": lambda n=n: counted(n) for n in (_TABLES, *_MORE_TABLES)}
    cases |= {f"all rows {n}": lambda n=n: of_all_rows(n) for n in (_TABLES, *_MORE_TABLES)}
    cases |= {f"error {row}": lambda row=row: error(row) for row in (-1, 50)}
    coordinator.finish(cases, _SLOW)


if __name__ == "__main__":
    assert sys.argv[1] == "job"
    _main()
