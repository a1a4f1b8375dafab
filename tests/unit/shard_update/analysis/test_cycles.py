# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the plan says about cycles holds for the function that the rewrite makes of it."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import random

import tensorflow as tf

from tests.unit.shard_update.update_jobs import REPLICAS, reduce_over
from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.function_graph.view import GraphView
from tf_fuse.shard_update.analysis import planner
from tf_fuse.shard_update.analysis.cycles import has_cycle
from tf_fuse.shard_update.pipeline import shard_update
from tf_fuse.shard_update.plan import PlanOptions
from tf_fuse.shard_update.replicas import Replicas
from tf_fuse.shard_update.verify.verifier import Original

_SIZE = 12
_SEEDS = 40


class _Step:
    """A random step: some all-reduces, whose updates read each other's variables."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.variables = [tf.Variable(tf.ones([_SIZE])) for _ in range(4)]
        self.slots = [tf.Variable(tf.ones([_SIZE])) for _ in range(6)]

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([_SIZE])] * 2)
        def function(x, y):
            return self.body(x, y)

        concrete = function.get_concrete_function()
        self.original = Original(concrete.function_def, concrete.graph, lambda name: None)
        names = [argument.name for argument in concrete.function_def.signature.input_arg]
        self.mirrored = names[2:]

    def body(self, x, y):
        rng = self.rng
        first = [variable.read_value() for variable in self.variables]
        seen = sum(tf.cumsum(one) for one in first)
        gradients = []
        for key in (1, 2):
            parts = [rng.choice([x, y]) * rng.choice(first) for _ in range(2)]
            total = reduce_over(tf.concat(parts, 0), key=key)
            gradients.append(tf.split(total, [_SIZE] * 2))
        # Updates of both, then others, which may read what these have made.
        (a, b), (c, d) = gradients
        for number, gradient in enumerate((a, c, b, d)):
            if number > 1 and rng.randrange(3):
                # The new weight of the other all-reduce.
                gradient = gradient * tf.cumsum(self.variables[3 - number].read_value())[0]
            self.update(gradient, self.variables[number])
        return seen

    def update(self, gradient, variable):
        rng = self.rng
        for _ in range(rng.randint(0, 3)):
            # (A read of now: it sees the updates before this one.)
            other = rng.choice(self.variables[:2])
            kind = rng.choice([0, 0, 0, 1, 2, 2, 3, 4])
            if kind == 0:
                gradient = gradient * tf.cumsum(other.read_value())[0]
            elif kind == 1:
                gradient = gradient / tf.reduce_sum(gradient)
            elif kind == 2:
                gradient = gradient + tf.reduce_max(gradient) * tf.cumsum(other.read_value())[1]
            elif kind == 3 and other is not variable:
                gradient = gradient * other
            else:
                variable.assign(variable * 0.9)
        if rng.randrange(3) == 0:
            slot = self.slots.pop()
            slot.assign(0.9 * slot + gradient)
            gradient = slot * 1.0
        if rng.randrange(8) == 0:
            variable.assign(variable + tf.cumsum(gradient))
        else:
            variable.assign_sub(0.1 * gradient)

    def shard(self, options):
        return shard_update(
            self.original, Replicas(REPLICAS, {"": 0}), self.mirrored, "parts/", options
        )


def _is_circular(function):
    view = GraphView(function, op_defs(lambda name: None))
    try:
        list(view.in_order())
    except ValueError:
        return True
    return False


def test_the_plan_knows_the_cycles_of_the_rewritten_function(monkeypatch):
    told = []

    def keep_cycles(view, buckets):
        told.append(any(b.is_sharded for b in buckets) and has_cycle(view, buckets))
        return list(buckets)

    monkeypatch.setattr(planner, "leave_cycles", keep_cycles)
    found = []
    for seed in range(_SEEDS):
        step = _Step(seed)
        for first_use in (False, True):
            update = step.shard(PlanOptions(first_use=first_use))
            found.append(update.function is not None and _is_circular(update.function))
            assert (told.pop() if told else False) == found[-1], f"seed {seed}, {first_use}"
    assert 0 < sum(found) < len(found)
