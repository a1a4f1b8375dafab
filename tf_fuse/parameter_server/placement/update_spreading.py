# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decide whether the update of one dense variable is spread over the servers.

No placement is even if one variable's updates take more than a server's share of all updates. If
its updates take longer than its transfer, it is created in pieces on several servers: slices of the
gradient go to their owners, which keep the slots of their pieces, and slices of the weight come
back. If the transfer takes longer, the variable stays whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tensorflow.python.distribute import sharded_variable
from tensorflow.python.framework import tensor_shape

from tf_fuse.parameter_server.balance import ServerLoads
from tf_fuse.parameter_server.costs import Costs, Load, VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import (
    EVEN,
    LEAST_SAVING,
    PartitionDecision,
    creating,
    planned,
    time_in_pieces,
    why_whole,
)

#: The verdict about a variable, to a sentence for people.
VERDICTS = {
    "not_asked": "compute is the bottleneck, but nothing takes its pieces: in the function "
    "that build is called with, build an optimizer of Keras 3 that takes them, or give the "
    "variable to tf_fuse.parameter_server.partitioning.pieces",
    "share": "its updates are no more than a server's share, and may stay on one",
    "spread": "compute is the bottleneck: its update and slots are spread",
    "together": "compute is the bottleneck, but to put pieces together would take workers longer",
    "wire": "the wire is the bottleneck: its update stays on one server",
}


@dataclass(frozen=True)
class Spread(PartitionDecision):
    """The decision about one variable.

    Attributes:
      update_s: that its updates of a step take, on one server.
      wire_s: that its weights and gradients of a step take on one server's link.
      share_s: a server's share of all updates of a step.
      verdict: a key of `VERDICTS`.
    """

    update_s: float = 0.0
    wire_s: float = 0.0
    share_s: float = 0.0
    verdict: str = "share"

    def arithmetic(self) -> str:
        """Return the arithmetic of the verdict, in words."""
        found = (
            f"updates {1e3 * self.update_s:.3f} ms per step (a server's share of all: "
            f"{1e3 * self.share_s:.3f} ms), wire {1e3 * self.wire_s:.3f} ms"
        )
        if self.seconds:
            times = [f"{1e3 * s:.3f} ms in {k}" for k, s in enumerate(self.seconds, 1)]
            found += f"; together {', '.join(times)}"
        pieces = f" over {self.pieces} servers" if self.pieces > 1 else ""
        return f"{found}: {VERDICTS[self.verdict]}{pieces}"


def decide(
    variables: Sequence[VariableSpec],
    servers: ServerLoads,
    costs: Costs,
    asked: Collection[VariableSpec],
) -> dict[VariableSpec, PartitionDecision]:
    """Decide about all dense variables of a plan.

    Args:
      variables: all that the plan is for, but those whose server the program names.
      servers: what they have already; is not changed.
      costs: the figures.
      asked: those whose pieces the program takes.

    Returns:
      Of each dense one that is trained the decision.
    """
    count = len(servers.counts)
    loads = {variable: variable.load(costs) for variable in set(variables)}
    # (In a fixed order, so that sums have the same bits.)
    total = sum(one[2] for one in servers.loads)
    total += sum(loads[variable].update_s for variable in sorted(variables))
    return {
        variable: _decide_one(variable, load, total / count, count, costs, variable in asked)
        for variable, load in sorted(loads.items())
        if _is_dense(variable, costs) and not why_whole(variable, count)
    }


def _is_dense(variable: VariableSpec, costs: Costs) -> bool:
    return variable.is_trained and costs.rows_of(variable.name, variable.shape) is None


def _decide_one(
    variable: VariableSpec, load: Load, share_s: float, servers: int, costs: Costs, is_asked: bool
) -> Spread:
    wire_s = load.seconds(costs) - load.update_s

    def made(verdict: str, pieces: int = 1, seconds: tuple[float, ...] = ()) -> Spread:
        return Spread(
            variable, pieces, seconds=seconds, update_s=load.update_s, wire_s=wire_s,
            share_s=share_s, verdict=verdict,
        )  # fmt: skip

    if load.update_s <= EVEN * share_s:
        return made("share")
    if load.update_s <= wire_s:
        return made("wire")
    most = min(servers, variable.shape[0])
    times = (load.seconds(costs),) + tuple(
        time_in_pieces(variable, pieces, costs, axis=0)[0] for pieces in range(2, most + 1)
    )
    best = min(times)
    if best > times[0] * (1 - LEAST_SAVING):
        return made("together", seconds=times)
    if not is_asked:
        return made("not_asked", seconds=times)
    return made("spread", 1 + times.index(best), times)


class PlannedPartitioner(sharded_variable.Partitioner):
    """Split what the plan says; other variables stay whole."""

    def __call__(self, shape: object, dtype: object, axis: int = 0) -> list[int]:
        """Return the number of partitions along each axis; see `creating` for the variable."""
        from tensorflow.python.framework import dtypes

        sizes = tuple(tensor_shape.as_shape(shape).as_list())
        result = [1] * len(sizes)
        name = dtypes.as_dtype(dtype).base_dtype.name
        decision = planned(VariableSpec(creating.name, sizes, name))
        if decision is not None and not creating.is_fixed:
            creating.shape = sizes
            result[0] = decision.pieces
        return result
