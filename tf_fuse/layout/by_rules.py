# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans made by hand: rules for named dimensions say of each operation what is split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.forks import SUFFIX
from tf_fuse.layout.named import named_strategy
from tf_fuse.layout.pins import Annotation
from tf_fuse.layout.propagation import propagate
from tf_fuse.layout.rules import LayoutRules

if TYPE_CHECKING:
    from tf_fuse.layout.planning import FunctionPlan, FunctionProblem


def plan_by_rules(
    problem: FunctionProblem,
    rules: LayoutRules | str,
    dimensions: Mapping[str, Annotation],
    renamed: Iterable[str] = (),
) -> FunctionPlan:
    """The plan in which each operation splits what rules say, as Mesh-TensorFlow lays out a model.

    Names go from a few tensors to all others. Only where a tensor has several readers, and where
    results leave, what is cheapest is chosen, since no operation is there.

    Args:
      problem: of `tf_fuse.layout.function_problem`.
      rules: which named dimension is split over which axis, as "batch:rows;hidden:cols".
      dimensions: by name of a tensor or variable, a name for each of its dimensions, or None.
      renamed: tensors at which names end, as of `propagate`.

    Raises:
      LayoutError: as of `propagate` and `named_strategy`; or the plan does not fit.
    """
    if isinstance(rules, str):
        rules = LayoutRules.from_text(rules)
    mesh = problem.rates.mesh
    operations = problem.graph.operations
    names = propagate(operations, dimensions, renamed)
    results = {f"result {name}" for name in problem.function.results}
    pins = {}
    for one, known in zip(operations, problem.graph.strategies, strict=True):
        if one.name.endswith(SUFFIX) or one.name in results:
            continue
        strategy = named_strategy(one, names, rules, mesh)
        if strategy not in known:
            raise LayoutError(
                f"{one} is to be run as ({strategy}), which the problem leaves out; make the "
                "problem with allowed strategies that have it"
            )
        pins[one.name] = str(strategy)
    return problem.search("propagate", pins=pins)
