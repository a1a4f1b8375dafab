# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decide which variables are split, into how many pieces, and along which axis.

A piece saves time, since its server sends, receives and updates less. It costs the operations of
one more update, one more tensor in a receive, and, if the whole variable is needed, the worker's
concatenation and the cutting of the gradient. Only the server that a step waits for matters: a
variable need not be split if other variables balance it on the other servers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tensorflow.python.distribute import sharded_variable
from tensorflow.python.framework import tensor_shape

from tf_fuse.parameter_server import arguments
from tf_fuse.parameter_server.balance import ServerLoads
from tf_fuse.parameter_server.costs import Costs, Load, VariableSpec

# A variable alone is split if that saves at least this share of its time, since the load
# of others is not known. A variable of a plan needs to save only the second share.
_LEAST_SAVING_ALONE = 0.2
LEAST_SAVING = 0.02
# How much more than the mean a server may keep before that counts.
EVEN = 1.1
# Pieces along another axis than the first are not contiguous in the whole.
_STRIDED = 2.0
_NEVER = frozenset({"resource", "variant"})


@dataclass(frozen=True)
class PartitionDecision:
    """The decision about one variable.

    Attributes:
      variable: that was looked at.
      pieces: into how many it is split; 1 for not at all.
      axis: along which one.
      seconds: by number of pieces, from 1 on, the estimate for a step.
      reason: why it was not looked at; "" if it was.
    """

    variable: VariableSpec
    pieces: int = 1
    axis: int = 0
    seconds: tuple[float, ...] = ()
    reason: str = ""

    def arithmetic(self) -> str:
        """Return the arithmetic of the decision, in words."""
        if self.reason:
            return self.reason
        times = ", ".join(f"{1e3 * s:.3f} ms in {k}" for k, s in enumerate(self.seconds, 1))
        where = f" along axis {self.axis}" if self.pieces > 1 else ""
        return f"{times}: {self.pieces}{where}"


def decide(
    variable: VariableSpec, servers: int, costs: Costs, axis: int | None = 0
) -> PartitionDecision:
    """Decide about a variable by itself, so that the same one is always split alike.

    Args:
      variable: that nothing else is known of.
      servers: how many there are.
      costs: the figures.
      axis: the only one along which it may be split; None for any.

    Returns:
      The decision.
    """
    reason = why_whole(variable, servers)
    if reason:
        return PartitionDecision(variable, reason=reason)
    times = [(variable.load(costs).seconds(costs), 0)]
    times += [time_in_pieces(variable, pieces, costs, axis) for pieces in range(2, servers + 1)]
    return _choose(variable, times, _LEAST_SAVING_ALONE)


def decide_all(
    variables: Sequence[VariableSpec], servers: ServerLoads, costs: Costs
) -> dict[VariableSpec, PartitionDecision]:
    """Decide about all variables of a plan together, along axis 0.

    Starting with the heaviest, a variable is split if the step would otherwise wait for its server,
    or if its server would keep much more than the mean.

    Args:
      variables: that may be split; those that are equal are split alike.
      servers: what they have already; is not changed.
      costs: the figures.

    Returns:
      Of each variable the decision.
    """
    count = len(servers.counts)
    kept = [loads[0] for loads in servers.loads]
    # (For existing variables only the time of updates is known, not their traffic.)
    busy = [loads[2] + 2 * loads[1] / costs.link_bytes_per_s for loads in servers.loads]
    loads = {variable: variable.load(costs) for variable in set(variables)}
    order = sorted(variables, key=lambda v: (-loads[v].seconds(costs), -loads[v].kept, v.name, v))
    mean_kept = (sum(kept) + sum(loads[v].kept for v in order)) / count
    mean_busy = (sum(busy) + sum(loads[v].seconds(costs) for v in order)) / count
    decisions: dict[VariableSpec, PartitionDecision] = {}
    for variable in order:
        if variable not in decisions:
            decisions[variable] = _decide_one(variable, busy, kept, mean_busy, mean_kept, costs)
        pieces = decisions[variable].pieces
        load = _of_piece(variable, pieces, costs)
        for server in _least(busy, kept, mean_busy, mean_kept, pieces):
            busy[server] += load.seconds(costs)
            kept[server] += load.kept
    return decisions


def _decide_one(
    variable: VariableSpec, busy: Sequence[float], kept: Sequence[float], mean_busy: float,
    mean_kept: float, costs: Costs,
) -> PartitionDecision:  # fmt: skip
    reason = why_whole(variable, len(busy))
    if reason:
        return PartitionDecision(variable, reason=reason)
    times = []
    for pieces in range(1, len(busy) + 1):
        load = _of_piece(variable, pieces, costs)
        chosen = _least(busy, kept, mean_busy, mean_kept, pieces)
        latest = max(busy[server] for server in chosen) + load.seconds(costs)
        fullest = max(kept[server] for server in chosen) + load.kept
        excess = max(1.0, fullest / mean_kept / EVEN) if mean_kept else 1.0
        seconds = max(mean_busy, latest) * excess
        times.append((seconds + _worker_time(variable, pieces, 0, costs), 0))
    return _choose(variable, times, LEAST_SAVING)


def _choose(
    variable: VariableSpec, times: Sequence[tuple[float, int]], least_saving: float
) -> PartitionDecision:
    """Return the fewest pieces among those that are as good as the best."""
    seconds = tuple(time for time, _ in times)
    best = min(seconds)
    pieces = 1
    if best <= seconds[0] * (1 - least_saving):
        pieces = 1 + next(i for i, time in enumerate(seconds) if time <= best)
    return PartitionDecision(variable, pieces, times[pieces - 1][1], seconds)


def why_whole(variable: VariableSpec, servers: int) -> str:
    """Return why a variable cannot be in pieces; "" if it can."""
    if servers < 2:
        return "there is one parameter server"
    if not variable.shape:
        return "a scalar"
    if variable.dtype in _NEVER:
        return f"it is of type {variable.dtype}"
    if math.prod(variable.shape) < 2:
        return "it has fewer than two elements"
    return ""


def time_in_pieces(
    variable: VariableSpec, pieces: int, costs: Costs, axis: int | None
) -> tuple[float, int]:
    """Return (seconds of a step, axis) with so many pieces; infinite if impossible."""
    is_gathered = costs.rows_of(variable.name, variable.shape) is not None
    axes = range(len(variable.shape)) if axis is None and not is_gathered else [axis or 0]
    times = [
        (
            _of_piece(variable, pieces, costs, one).seconds(costs)
            + _worker_time(variable, pieces, one, costs),
            one,
        )
        for one in axes
        if variable.shape[one] >= pieces
    ]
    return min(times, default=(math.inf, 0))


def _of_piece(variable: VariableSpec, pieces: int, costs: Costs, axis: int = 0) -> Load:
    """Return what the largest piece costs its server."""
    if pieces == 1:
        return variable.load(costs)
    if variable.shape[axis] < pieces:
        return Load(math.inf, math.inf, math.inf, math.inf, math.inf)
    shape = list(variable.shape)
    shape[axis] = -(-shape[axis] // pieces)
    share = shape[axis] / variable.shape[axis]
    return replace(variable, shape=tuple(shape)).load(costs, share)


def _worker_time(variable: VariableSpec, pieces: int, axis: int, costs: Costs) -> float:
    """Return a worker's extra seconds for concatenating pieces and cutting the gradient."""
    if pieces == 1:
        return 0.0
    times = (pieces - 1) * costs.piece_s
    if costs.rows_of(variable.name, variable.shape) is None:
        passes = (2 if variable.is_trained else 1) * (_STRIDED if axis else 1.0)
        times += passes * variable.bytes / costs.memory_bytes_per_s
    return times


def _least(
    busy: Sequence[float], kept: Sequence[float], mean_busy: float, mean_kept: float, pieces: int
) -> list[int]:
    """Return the servers with the least, of time and bytes."""

    def fullness(server: int) -> tuple[float, int]:
        time = busy[server] / mean_busy if mean_busy else 0.0
        size = kept[server] / mean_kept if mean_kept else 0.0
        return max(time, size), server

    return sorted(range(len(busy)), key=fullness)[:pieces]


def rows_of_pieces(rows: int, pieces: int) -> list[int]:
    """Return the rows of each piece, as TensorFlow cuts: the first ones take the rest."""
    base, extra = divmod(rows, pieces)
    return [base + (index < extra) for index in range(pieces)]


class CostPartitioner(sharded_variable.Partitioner):
    """Split those variables whose pieces save more time than they cost.

        strategy = tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=tf_fuse.parameter_server.CostPartitioner(servers=4))

    Of variables that `tf_fuse.parameter_server.build` has planned, all are looked at together;
    otherwise each by itself, so that the same variable is always split alike. For
    `tf.compat.v1.get_variable(..., partitioner=CostPartitioner(4, axis=None))` the axis is chosen,
    too.

    Attributes:
      servers: how many parameter servers there are.
      costs: the figures by which it decides.
      axis: the only one along which it splits, None for any.
      decisions: what it has decided, by variable.
    """

    def __init__(self, servers: int, costs: Costs | None = None, axis: int | None = 0):
        """Make a partitioner.

        Args:
          servers: how many parameter servers there are, at least 1.
          costs: the figures by which it decides; None for those of `Costs()`, with the number of
            workers of the strategy where the option `place_variables` is on.
          axis: along which variables may be split: 0, as `ParameterServerStrategy` needs it; None
            for the one that costs least, for `tf.compat.v1.get_variable`. Rows are gathered from
            pieces along axis 0 only, so variables that look like embeddings are split so.

        Raises:
          TypeError: an argument is of another type.
          ValueError: a number is out of range.
        """
        if costs is not None:
            arguments.instance("costs", costs, Costs, ", or None")
        self.servers = arguments.servers(servers)
        self.costs = costs or Costs()
        self._is_told = costs is not None
        self.axis = arguments.axis(axis)
        self.decisions: dict[VariableSpec, PartitionDecision] = {}

    def adapt(self, servers: int, workers: int, is_fused: bool = False) -> None:
        """Check that it fits a strategy, and take the figures that it was not given.

        Args:
          servers: how many there are.
          workers: how many there are.
          is_fused: whether servers do each update as one operation.

        Raises:
          ValueError: it is for another number of servers; the text has both.
        """
        if servers != self.servers:
            raise ValueError(
                f"the CostPartitioner is for {self.servers} parameter servers, the cluster has "
                f"{servers}: make it with servers={servers}"
            )
        if not self._is_told:
            self.costs = Costs(workers=max(1, workers))
        self.costs = self.costs.of_updates(is_fused)

    def __call__(self, shape: object, dtype: object, axis: int = 0) -> list[int]:
        """Decide about one variable.

        Args:
          shape: of the whole variable, a `tf.TensorShape` that is fully defined.
          dtype: of its elements.
          axis: as of TensorFlow's partitioners; of effect where the partitioner has none itself.

        Returns:
          The number of pieces along each axis.

        Raises:
          TypeError: an argument is of another type.
          ValueError: the shape is not fully defined, or has no such axis.
        """
        from tensorflow.python.framework import dtypes

        axis = arguments.axis(axis) or 0
        known = tensor_shape.as_shape(shape)
        if not known.is_fully_defined():
            raise ValueError(
                f"a variable of shape {known} cannot be split: give it a shape that is fully "
                "defined, or no partitioner"
            )
        sizes = tuple(known.as_list())
        only = self.axis if axis == 0 else axis
        if only is not None and sizes and only >= len(sizes):
            raise ValueError(f"a variable of shape {known} has no axis {only} to be split along")
        variable = VariableSpec(_name(), sizes, dtypes.as_dtype(dtype).base_dtype.name)
        if creating.is_fixed:
            decision = PartitionDecision(variable, reason="a device scope names its server")
        else:
            decision = planned(variable) or decide(variable, self.servers, self.costs, only)
        self.decisions[variable] = decision
        creating.shape = sizes
        result = [1] * len(sizes)
        if decision.pieces > 1:
            result[decision.axis] = decision.pieces
        return result


class _Creating(threading.local):
    """The variable that this thread is about to make, unknown to TensorFlow's partitioners."""

    name = ""
    is_fixed = False
    shape: tuple[int, ...] | None = None
    planned: Callable[[VariableSpec], PartitionDecision | None] | None = None


creating = _Creating()


def _name() -> str:
    if creating.name:
        return creating.name
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import variable_scope

    # (In graphs of sessions; functions and eager programs have no such scope.)
    if ops.get_default_graph().building_function:
        return ""
    return variable_scope.get_variable_scope().name or ""


def planned(variable: VariableSpec) -> PartitionDecision | None:
    """Return what the plan decides about the variable that this thread is about to make."""
    return None if creating.planned is None else creating.planned(variable)
