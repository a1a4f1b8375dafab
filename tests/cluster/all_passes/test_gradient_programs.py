# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs drawn at random have the values and gradients of stock TensorFlow, whatever is on.

A program may ask for the gradient of anything that it has computed. Each is traced and run twice
on variables of the same cluster, the same replicas or the same mesh: with all options off, and with
options that are drawn, too. On a mesh the second run is that of a plan.

`make random SEEDS=2000` draws more of them, and looks for the shortest that differs.
"""

import os
import sys
from typing import Any

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

# How many by default, and in `make slow`. (Each kind of statement is in some of 20 or more.)
_PROGRAMS = {"servers": (8, 40), "replicas": (4, 10), "layouts": (12, 68)}
# By default. (Of so few programs on replicas, seed 1 draws only one that is rewritten.)
_SEEDS = {"servers": 1, "replicas": 2, "layouts": 1}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("where", "count"),
    [(where, count) for where, (count, _) in _PROGRAMS.items()]
    + [
        pytest.param(where, more, marks=pytest.mark.slow)
        for where, (count, more) in _PROGRAMS.items()
        if more > count
    ],
)
def test_programs_drawn_at_random(where, count):
    cases = coordinator.run(__file__, where, count)
    found = cases["programs"]
    assert "raised" not in found, found["text"]
    assert found["programs"] == count
    # Programs that nothing of is rewritten, and gradients of nothing, would show nothing.
    assert found["rewritten"] > count // 4 and found["gradients"] > count
    assert found["missing"] == [] or count < 20
    if where == "servers":
        # A gather sent past a tensor to the variable has no gradient for that tensor.
        text = cases["redirected"]["text"]
        ours, _, theirs = text.partition(", and in stock ")
        assert text == "None values not supported." or (theirs and "'none'" in ours), text


def _switch(options):
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options(options)


class _Case:
    """What programs run on.

    Attributes:
      counts: what has been compared so far: programs, those that are rewritten, gradients; and
        kinds of statements that are missing in all of them.
    """

    def __init__(self):
        from tests.cluster.all_passes import gradient_programs

        self._programs = gradient_programs
        self.counts: dict[str, Any] = dict.fromkeys(["programs", "rewritten", "gradients"], 0)
        self.counts["missing"] = gradient_programs.KINDS

    def run(self, program, options, flag):
        """Runs a program.

        Args:
          program: of `gradient_programs`.
          options: that are on; None for stock.
          flag: what its conditionals ask.

        Returns:
          The kinds of what it returns; that, and what variables are then; and what ran.
        """
        raise NotImplementedError

    def compare(self, program, options, flag):
        """Runs a program both ways."""
        import hypothesis
        from tensorflow.errors import InvalidArgumentError, NotFoundError

        try:
            kinds, stock, stock_ops = self.run(program, None, flag)
        except LookupError:  # Stock has no gradient for a gradient of a call along the graph.
            hypothesis.reject()
        except (InvalidArgumentError, NotFoundError) as error:
            # As above: in a loop, or of variables of several tasks, it knows only when it runs.
            if "SymbolicGradient" not in str(error):
                raise
            hypothesis.reject()
        our_kinds, ours, our_ops = self.run(program, options, flag)
        assert our_kinds == kinds, f"{our_kinds}, and in stock {kinds}"
        pairs = zip(coordinator.exact(ours), coordinator.exact(stock), strict=True)
        differ = [i for i, (mine, theirs) in enumerate(pairs) if mine != theirs]
        assert not differ, f"values {differ} of {len(ours)}, of kinds {kinds}, are not stock's"
        self.counts["programs"] += 1
        self.counts["rewritten"] += our_ops != stock_ops
        self.counts["gradients"] += len(kinds) - kinds.count("none")
        drawn = {kind for kind, _, _ in program}
        self.counts["missing"] = [one for one in self.counts["missing"] if one not in drawn]


class _Servers(_Case):
    """Variables on a cluster, with the options off and on, and functions that run on a worker."""

    def __init__(self):
        import tensorflow as tf

        super().__init__()
        job = coordinator.Job("on", 1, 2)
        self._variables, self._loops = {}, {}
        for on in (False, True):
            sharded = {"shard_weight_update": on, "do_fuse_recv": on}
            _switch(self._programs.OFF | sharded)
            partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
                min_shard_bytes=32, max_shards=2
            )
            split, whole = (
                tf.distribute.ParameterServerStrategy(
                    job.cluster.resolver(), variable_partitioner=one
                )
                for one in (partitioner, None)
            )
            with split.scope():
                self._variables[on] = [tf.Variable(tf.zeros([rows, 4])) for rows in (12, 4)]
            with whole.scope():
                self._variables[on].append(tf.Variable(tf.zeros([6, 4])))
            self._loops[on] = tf.distribute.coordinator.ClusterCoordinator(split)

    def run(self, program, options, flag):
        """As of `_Case`."""
        import tensorflow as tf

        on = options is not None
        _switch(options or self._programs.OFF)
        variables, kinds = self._variables[on], []
        self._programs.reset(variables)

        @tf.function(autograph=False)
        def function(flag):
            run = self._programs.Run(variables, flag)
            kinds[:], tensors = self._programs.flat(run.run(program))
            return tensors

        result = self._loops[on].schedule(function, args=(tf.constant(flag),))
        self._loops[on].join()
        values = [value.numpy() if hasattr(value, "numpy") else value for value in result.fetch()]
        graph = function.get_concrete_function(tf.TensorSpec([], tf.bool)).graph
        return kinds, values + self._programs.values_of(variables), len(graph.get_operations())


class _Replicas(_Case):
    """Variables on two devices of this process, and steps that end with an optimizer's update."""

    def __init__(self):
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
        )
        import tf_fuse  # noqa: F401  (adds the options)

        super().__init__()
        self._strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
        self._made = {}
        for on in (False, True):
            with self._strategy.scope():
                variables = [
                    tf.Variable(tf.zeros([rows, 4]), aggregation=tf.VariableAggregation.MEAN)
                    for rows in (12, 4, 6)
                ]
                optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.5)
                optimizer.build(variables)
            self._made[on] = variables, optimizer

    def run(self, program, options, flag):
        """As of `_Case`."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        from tf_fuse.shard_update import interception

        on = options is not None
        _switch(options or self._programs.OFF)
        (variables, optimizer), kinds = self._made[on], []
        self._programs.reset(variables)
        for slot in optimizer.momentums:
            slot.assign(tf.zeros(slot.shape))

        def replica(flag):
            with tf.GradientTape() as tape:
                results = self._programs.Run(variables, flag).run(program)
                used = [tf.reduce_sum(one * one) for one in variables]
                dense = [one for one in results if isinstance(one, tf.Tensor)]
                used += [tf.reduce_sum(tf.cast(one, tf.float32)) for one in dense]
                target = tf.add_n(used)
            gradients = tape.gradient(target, variables)
            # (Those of rows come by no all-reduce.)
            gradients = [tf.clip_by_value(tf.convert_to_tensor(g), -9.0, 9.0) for g in gradients]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            kinds[:], tensors = self._programs.flat(results)
            return tensors

        @tf.function(autograph=False)
        def function(flag):
            return self._strategy.run(replica, args=(flag,))

        for _ in range(2):  # (Where weights are in shards, the second step gathers them.)
            values = function(tf.constant(flag))
        results = [one for v in values for one in self._strategy.experimental_local_results(v)]
        state = [one.numpy() for one in [*variables, *optimizer.momentums]]
        decided = interception.updates_of(context.context()).decisions
        is_cut = bool(on and options["shard_weight_update"] and decided[-1].reason is None)
        return kinds, [one.numpy() for one in results] + state, is_cut


class _Layouts(_Case):
    """Variables of this process, which plans lay out on two of its devices."""

    def __init__(self):
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
        from tf_fuse import layout

        super().__init__()
        self._mesh = layout.Mesh({"x": 2})
        self._variables = [
            tf.Variable(tf.zeros([rows, 4]), name=f"of_{rows}") for rows in (12, 4, 6)
        ]

    def run(self, program, options, flag):
        """As of `_Case`."""
        import hypothesis
        import tensorflow as tf

        from tf_fuse import layout

        _switch(options or self._programs.OFF)
        variables, kinds = self._variables, []
        self._programs.reset(variables)

        @tf.autograph.experimental.do_not_convert
        def function(flag):
            kinds[:], tensors = self._programs.flat(
                self._programs.Run(variables, flag).run(program)
            )
            return tensors

        if options is None:
            values = tf.function(function)(tf.constant(flag))
            return kinds, self._found(values), 0
        try:
            problem = layout.function_problem(function, self._mesh, [tf.TensorSpec([], tf.bool)])
        except layout.LayoutError as error:
            if "which is not known before the function runs" in str(error):
                hypothesis.reject()  # (As those of gradients of some conditionals.)
            raise
        split = sorted(problem.function.variables)[:1]
        plan = problem.search("propagate", "rows:x", {one: ["rows", None] for one in split})
        run = layout.execute(plan)
        try:
            values = self._found(run(tf.constant(flag)))
        finally:
            run.release()
        return kinds, values, len(plan.variables)

    def _found(self, values):
        # (A sum over devices may be zero where another order has -0.0.)
        arrays = [one.numpy() for one in values] + self._programs.values_of(self._variables)
        return [one + 0 if one.dtype.kind == "f" else one for one in arrays]


def _draw(where, count, seed):
    from hypothesis import Phase

    from tests.cluster.all_passes import gradient_programs
    from tf_fuse.fuse_update.encode import xla

    xla.MIN_ELEMENTS = 2
    case = {"servers": _Servers, "replicas": _Replicas, "layouts": _Layouts}[where]()
    # (To find a shorter program takes long.)
    is_short = count <= max(_PROGRAMS[where])
    phases = [Phase.generate] if is_short else [Phase.generate, Phase.shrink]
    sets = gradient_programs.option_sets(max(8, count // 20), seed)
    for number, options in enumerate(sets):
        share = count * (number + 1) // len(sets) - count * number // len(sets)
        _compare(case, options, share, phases, f"{seed} {number}")
    return case


def _compare(case, options, count, phases, seed):
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    from tests.cluster.all_passes import gradient_programs

    drawn = []

    @seeded(seed)
    @settings(
        max_examples=count + 1, deadline=None, database=None, phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(gradient_programs.programs(), st.booleans())
    def compare(program, flag):
        drawn.append(program)
        if len(drawn) > 1:  # (The first one is the simplest there is, each time.)
            case.compare(program, options, flag)

    compare()


def _redirect(case):
    """Draws programs while a gather of what a variable was read into is one of the variable."""
    from hypothesis import Phase
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.ops import gen_array_ops

    from tests.cluster.all_passes import gradient_programs
    from tf_fuse._tensorflow.graphs import rewrite_after_trace
    from tf_fuse.parameter_server.lookups import server_gather

    ours = gen_array_ops.gather_v2

    def gather_v2(params, indices, axis, batch_dims=0, name=None):
        rows = ours(params, indices, axis, batch_dims=batch_dims, name=name)
        if not hasattr(params, "op") or tensor_util.constant_value(rows.op.inputs[2]) != 0:
            return rows
        between, source = rewrite_after_trace.chain_to(params.op.outputs[0])
        reads = server_gather._reads_of(source)
        if not reads or not all(map(server_gather._is_remote, reads)):
            return rows
        if any(one.type == "Cast" for one in between):
            return rows
        found = server_gather._rows(reads, rows.op.inputs[1], [])
        found.set_shape(rows.shape)
        return found

    gen_array_ops.gather_v2 = gather_v2
    options = {"do_fuse_recv": True, "shard_weight_update": True}
    try:
        _compare(case, gradient_programs.OFF | options, 40, [Phase.generate], "redirected")
    finally:
        gen_array_ops.gather_v2 = ours


def _main(where, count, seed=None):
    if seed is None:
        made = []

        def draw():
            return _draw(where, int(count), _SEEDS[where])

        cases = {"programs": lambda: made.append(draw()) or made[0].counts}
        if where == "servers":
            cases["redirected"] = lambda: _redirect(made[0])
        coordinator.finish(cases)
    print(where, _draw(where, int(count), int(seed)).counts, flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
