# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Packed handles stand for the variables: same values, one value per server and step."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_SUM = 66.0  # 0 + 1 + ... + 11


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


def test_one_pack_per_server(cases):
    assert cases["packed"] == {"sum": _SUM, "handles": 12, "packs": 2, "kept": 1}


def test_packed_function_sees_and_makes_changes(cases):
    # Each call adds 1 to each of 12 variables; before the last, 100 is added to one from outside.
    assert cases["updates"] == [_SUM + 12, _SUM + 24, _SUM + 36 + 100]


def test_few_handles_are_passed_as_they_are(cases):
    assert cases["few"] == {"sum": 6.0, "rewritten_functions": 0}


def test_option_switches_it_off(cases):
    assert cases["off"] == {"sum": _SUM + 136 + 1.0, "rewritten_functions": 0}


def test_rewritten_function_goes_with_its_original(cases):
    assert cases["collected"] == {"before": True, "after": False}


def test_function_called_with_other_variables_is_not_packed_any_more(cases):
    # The rewritten function stays: a call of it may be under way on another thread.
    assert cases["other_variables"] == {"sums": [_SUM + 136, 78.0] * 4, "retired": True}


def test_functions_may_be_collected_while_another_is_packed(cases):
    total = _SUM + 136
    assert cases["collected_inside"] == {"sums": [total] * 3, "rewritten_functions": 1}


def test_error_of_a_rewritten_function_reads_like_that_of_its_original(cases):
    assert cases["error"]["packed"] is True
    text = cases["error"]["text"]
    assert text.startswith("Graph execution error:")
    assert "in inverse" in text and "__tf_fuse_packed" not in text


def _main():
    import gc

    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    from tf_fuse.parameter_server.lookups import handle_packing

    job = coordinator.Job("on", 2, 2)
    context = context_module.context()
    vs = job.variables([float(i) for i in range(12)])

    def rewritten_functions():
        packer = getattr(context, "_tf_fuse_packer", None)
        functions = packer._functions if packer else {}
        return {name: rewritten for name, rewritten in functions.items() if rewritten is not None}

    def newly_rewritten(action):
        before = set(rewritten_functions())
        value = action()
        return value, [
            rewritten for name, rewritten in rewritten_functions().items() if name not in before
        ]

    def call(function, *args):
        with tf.device("/job:worker/replica:0/task:0"):
            return float(function(*args))

    functions = []  # A function that is collected takes its rewritten one with it.

    def sum_of(variables):
        @tf.function
        def total(offset):
            return tf.add_n([v.read_value() for v in variables]) + offset

        functions.append(total)
        return total

    def packed():
        total, (rewritten,) = newly_rewritten(lambda: call(sum_of(vs), tf.constant(0.0)))
        counts = {
            "handles": len(rewritten.handles),
            "packs": len(rewritten.packs),
            "kept": len(rewritten.kept),
        }
        return {"sum": total, **counts}

    def updates():
        @tf.function
        def step():
            new = [v.assign_add(1.0, read_value=True) for v in vs]
            return tf.add_n([tf.identity(v) for v in new])

        results = [call(step), call(step)]
        vs[5].assign_add(100.0)
        return [*results, call(step)]

    def few():
        total, made = newly_rewritten(lambda: call(sum_of(vs_few), tf.constant(0.0)))
        return {"sum": total, "rewritten_functions": len(made)}

    def off():
        options = {"do_fuse_recv": True, "do_pack_handles": False, "fuse_grouping": "level"}
        tf.config.optimizer.set_experimental_options(options)
        total, made = newly_rewritten(lambda: call(sum_of(vs), tf.constant(1.0)))
        tf.config.optimizer.set_experimental_options({**options, "do_pack_handles": True})
        return {"sum": total, "rewritten_functions": len(made)}

    def collected():
        _, (rewritten,) = newly_rewritten(lambda: call(sum_of(vs), tf.constant(0.0)))
        name = rewritten.name
        before = context.has_function(name)
        functions.pop()
        del rewritten
        gc.collect()
        return {"before": bool(before), "after": bool(context.has_function(name))}

    def other_variables():
        more = job.variables([float(i) + 1.0 for i in range(12)])

        @tf.function
        def total(variables):
            return tf.add_n([v.read_value() for v in variables])

        total.get_concrete_function(vs)

        def rounds():
            results = [job.coordinator.schedule(total, args=([vs, more][i % 2],)) for i in range(8)]
            job.coordinator.join()
            return [float(result.fetch()) for result in results]

        sums, made = newly_rewritten(rounds)
        return {"sums": sums, "retired": [rewritten.is_retired for rewritten in made] == [True]}

    def collected_inside(patched=handle_packing.packed_definition):
        def collects(*args):
            gc.collect()
            return patched(*args)

        handle_packing.packed_definition = collects
        sums = []
        before = set(rewritten_functions())
        for _ in range(3):
            cycle = [sum_of(vs)]
            cycle.append(cycle)
            functions.clear()
            sums.append(call(cycle[0], tf.constant(0.0)))
            del cycle
        handle_packing.packed_definition = patched
        # Of those three functions only the last is alive.
        return {"sums": sums, "rewritten_functions": len(set(rewritten_functions()) - before)}

    def error():
        @tf.function
        def inverse(zero):
            total = tf.add_n([v.read_value() for v in vs])
            return tf.linalg.inv(tf.fill([2, 2], total * zero), name="in_inverse")

        functions.append(inverse)
        before = set(rewritten_functions())
        try:
            with tf.device("/job:worker/replica:0/task:0"):
                inverse(tf.constant(0.0))
        except tf.errors.InvalidArgumentError as caught:
            return {"text": str(caught), "packed": len(set(rewritten_functions()) - before) == 1}
        return {"text": "", "packed": None}

    vs_few = job.variables([float(i) for i in range(4)])
    coordinator.finish(
        {
            "packed": packed,
            "updates": updates,
            "few": few,
            "off": off,
            "collected": collected,
            "other_variables": other_variables,
            "collected_inside": collected_inside,
            "error": error,
        }
    )


if __name__ == "__main__":
    assert len(sys.argv) == 1
    _main()
