# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan the servers of a model's variables by building the model without them first."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tf_fuse._tensorflow.variables.parameter_server_strategy import partitioner_of
from tf_fuse.parameter_server import arguments, interception
from tf_fuse.parameter_server.abstract_build import Recorded, record
from tf_fuse.parameter_server.balance import ServerLoads, imbalance
from tf_fuse.parameter_server.costs import Costs, Load, VariableSpec
from tf_fuse.parameter_server.partitioning import keras_optimizers
from tf_fuse.parameter_server.partitioning.partitioner import (
    CostPartitioner,
    PartitionDecision,
    decide_all,
)
from tf_fuse.parameter_server.placement import update_spreading
from tf_fuse.parameter_server.placement.device_setter import whole_of
from tf_fuse.parameter_server.placement.planned_places import (
    Expected,
    PlacementPlan,
    Split,
    make_plan,
)

_log = logging.getLogger("tf_fuse")
_T = TypeVar("_T")


def build(function: Callable[[], _T]) -> _T:
    """Call a function that builds a model, after planning where its variables go.

    To be called in the scope of a `tf.distribute.ParameterServerStrategy`:

        with strategy.scope():
            model, optimizer = tf_fuse.parameter_server.build(make_model)

    The function is run twice: first in a graph of its own, where nothing is computed and no
    variable is made, to list all variables with their shapes; then normally. The state of
    Python's and NumPy's random numbers, and the numbers in Keras's names, are in between what they
    were before; anything else that the function changes outside of what it returns is changed
    twice. If it cannot be run in a graph, that is logged and reported, and each variable is placed
    as it is made.

    Where the strategy has no partitioner, a dense variable is made in pieces if its updates alone
    are more than a server's share of all, if they take longer than its transfer, and if the
    function builds an optimizer of Keras 3 with it that takes pieces, or gives it to
    `tf_fuse.parameter_server.partitioning.pieces`. `placement_report` has the arithmetic.

    Args:
      function: makes variables, those of the optimizer at best too (`optimizer.build(...)`), so
        that what they take is known.

    Returns:
      What the function returns. Without the option `place_variables`, or under another
      strategy, it is just called.

    Raises:
      TypeError: it is not a function.
    """
    arguments.function(function, "builds a model")
    extended = interception.strategy_in_scope()
    if extended is None:
        return function()
    placement = interception.placement_of(extended)
    keras_optimizers.install()  # (Under record, variables are made without the strategy.)

    def split(expected: Sequence[Expected]) -> Split:
        return _split_of(partitioner_of(extended), expected, placement.costs)

    plan = _plan(function, placement.costs, placement.loads(), split, in_graph=False)
    placement.add_plan(plan)
    if plan.places:
        _log.info(
            "%d variables are planned over %d parameter servers: largest / mean %.3f in "
            "bytes kept.",
            len(plan.places), plan.servers, imbalance([one[0] for one in placement.loads().loads]),
        )  # fmt: skip
    try:
        return function()
    finally:
        left = placement.remove_plan(plan)
        if left:
            names = ", ".join(place.variable.name for place in left[:5])
            _log.warning(
                "%d of %d variables that were planned were not made: %s%s. A model that "
                "is built differently the second time is placed as it is made.",
                len(left), len(plan.places), names, ", ..." if len(left) > 5 else "",
            )  # fmt: skip


def plan(function: Callable[[], Any], servers: int, costs: Costs | None = None) -> PlacementPlan:
    """Plan where the variables of a graph go, for `ps_strategy`.

    Args:
      function: builds the graph's variables; without `tf.compat.v1.train.replica_device_setter`. It
        is run in a graph of its own.
      servers: how many parameter servers there are, at least 1.
      costs: the figures; None for those of `Costs()`.

    Returns:
      The plan; without places, and with the reason, if the function cannot be run so.

    Raises:
      TypeError: an argument is of another type.
      ValueError: there is no server.
    """
    arguments.function(function, "builds a graph")
    if costs is not None:
        arguments.instance("costs", costs, Costs, ", or None")
    empty = ServerLoads(arguments.servers(servers), len(Load().balanced()))
    return _plan(function, costs or Costs(), empty, None, in_graph=True)


def _plan(
    function: Callable[[], Any],
    costs: Costs,
    servers: ServerLoads,
    split: Callable[[Sequence[Expected]], Split] | None,
    in_graph: bool,
) -> PlacementPlan:
    try:
        recorded = record(function)
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        reason = f"the model cannot be built abstractly: {type(error).__name__}: {text}"
        _log.warning("%s. Each variable is placed as it is made.", reason)
        _log.debug("while planning", exc_info=True)
        return PlacementPlan(len(servers.counts), reason=reason)
    expected = expected_of(recorded, in_graph)
    for one in expected:
        if one.server is not None and one.server >= len(servers.counts):
            raise ValueError(
                f"the variable {one.variable.name!r} is to be on /job:ps/task:{one.server}, but "
                f"there are {len(servers.counts)} parameter servers, from task 0 on: change the "
                "device scope around it"
            )
    return make_plan(expected, costs, servers, split(expected) if split else None)


def expected_of(recorded: Sequence[Recorded], in_graph: bool) -> list[Expected]:
    """Return the variables to plan for, counting those that are put beside them.

    Args:
      recorded: all variables that a program made.
      in_graph: whether the names of a graph are asked for.
    """
    beside = {one.graph_name: one.beside for one in recorded if one.beside}
    sizes = {one.graph_name: _bytes(one) for one in recorded}
    slot_bytes: Counter[str] = Counter()
    for name in beside:
        owner, seen = name, {name}
        while owner in beside and beside[owner] not in seen:
            owner = beside[owner]
            seen.add(owner)
        slot_bytes[owner] += sizes[name]

    def slots(name: str) -> int | None:
        # (By size: an optimizer keeps smaller ones, too, as the powers of Adam's betas.)
        return round(slot_bytes[name] / (sizes[name] or 1)) if slot_bytes else None

    return [
        Expected(
            VariableSpec(
                one.graph_name if in_graph else one.name,
                one.shape,
                one.dtype,
                one.trainable,
                slots(one.graph_name),
            ),
            one.server,
            may_be_split=bool(one.shape) and not in_graph,
            whole=whole_of(one.graph_name) if in_graph else "",
            in_pieces=one.in_pieces,
        )
        for one in recorded
        if one.shape is not None and not one.beside
    ]


def _bytes(one: Recorded) -> int:
    return VariableSpec("", one.shape or (), one.dtype).bytes


def _split_of(partitioner: Any, expected: Sequence[Expected], costs: Costs) -> Split:
    """Return the function that splits planned variables as the strategy's partitioner will."""
    if partitioner is None:
        asked = {one.variable for one in expected if one.in_pieces}
        return lambda variables, servers: update_spreading.decide(variables, servers, costs, asked)
    if isinstance(partitioner, CostPartitioner):
        return lambda variables, servers: decide_all(variables, servers, partitioner.costs)

    def ask(
        variables: Sequence[VariableSpec], servers: ServerLoads
    ) -> dict[VariableSpec, PartitionDecision]:
        from tensorflow.python.framework import dtypes, tensor_shape

        decisions = {}
        for one in variables:
            shape, dtype = tensor_shape.TensorShape(one.shape), dtypes.as_dtype(one.dtype)
            pieces = partitioner(shape=shape, dtype=dtype)[0]
            decisions[one] = PartitionDecision(one, pieces, reason="a partitioner of the program")
        return decisions

    return ask
