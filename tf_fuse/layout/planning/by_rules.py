# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make plans by hand, from rules for named dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tf_fuse.layout.optimize.problem import listed
from tf_fuse.layout.planning.sharding_constraints import Dimensions, annotations_of
from tf_fuse.layout.strategies.by_name import named_strategy
from tf_fuse.layout.strategies.insert_forks import SUFFIX
from tf_fuse.layout.strategies.name_propagation import propagate
from tf_fuse.layout.types.dimension_rules import LayoutRules
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.operation import LAYOUT_MARK

if TYPE_CHECKING:
    from tf_fuse.layout.planning.pipeline import FunctionPlan, FunctionProblem


def plan_by_rules(
    problem: FunctionProblem,
    rules: LayoutRules | str,
    dimensions: Dimensions,
    renamed: Iterable[str] = (),
) -> FunctionPlan:
    """Return the plan that rules for dimensions give, as Mesh-TensorFlow lays out a model.

    Names go from a few tensors to all others. Only where a tensor has several readers, and where
    results leave, what is cheapest is chosen, since no operation is there.

    Args:
      problem: of `tf_fuse.layout.function_problem`.
      rules: which named dimension is split over which axis, as "batch:rows;hidden:cols".
      dimensions: a name for each dimension, or None, of some tensors and variables; as of `plan`.
      renamed: tensors at which names end, as of `propagate`.

    Raises:
      LayoutError: as of `propagate` and `named_strategy`; a rule is for a dimension that no tensor
        has; or the plan does not fit.
    """
    if isinstance(rules, str):
        rules = LayoutRules.from_text(rules)
    mesh = problem.rates.mesh
    operations = problem.graph.operations
    names = propagate(operations, annotations_of(dimensions), renamed)
    known = sorted(names.sizes())
    raise_if([
        f"rule {name}:{axis}: no tensor has a dimension {name!r}; there are: {listed(known)}"
        for name, axis in rules.rules
        if name not in known
    ])  # fmt: skip
    results = {f"result {name}" for name in problem.function.results}
    constraints = {}
    for one, mine in zip(operations, problem.graph.strategies, strict=True):
        if one.name.endswith(SUFFIX) or one.name in results or one.attribute(LAYOUT_MARK):
            continue
        strategy = named_strategy(one, names, rules, mesh)
        if strategy not in mine:
            raise LayoutError(
                f"{one} is to be run as ({strategy}), which the problem leaves out; make the "
                "problem with allowed strategies that have it"
            )
        constraints[one.name] = str(strategy)
    return problem.search("propagate", constraints=constraints)
