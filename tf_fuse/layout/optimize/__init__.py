# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Search for the cheapest strategy of each operation, under a memory limit.

    from tf_fuse import layout
    from tf_fuse.layout import optimize

    plan = optimize.search(problem)
    layout.show(plan)
    layout.show(plan.why())
    plan.save("model.plan")
    plan = optimize.Plan.load("model.plan", problem)

A problem has no layouts: operations have candidates with times and bytes, and edges have times for
all pairs of candidates of their ends. `solver.py` says how it is solved.
"""

from tf_fuse.layout.optimize.allowed_strategies import AUTO, MODES, PROPAGATE
from tf_fuse.layout.optimize.errors import MemoryLimitError, NoChoiceError, SearchLimitError
from tf_fuse.layout.optimize.mesh_search import MeshSearch, Tried, search_meshes, shapes
from tf_fuse.layout.optimize.plans.alternatives import Alternative
from tf_fuse.layout.optimize.plans.plan import Plan
from tf_fuse.layout.optimize.plans.plan_figures import OperationPlan
from tf_fuse.layout.optimize.problem import DATA, Candidate, Edge, Node, Problem
from tf_fuse.layout.optimize.search_plan import search
from tf_fuse.layout.optimize.solution import Limits

__all__ = [
    "AUTO",
    "DATA",
    "MODES",
    "PROPAGATE",
    "Alternative",
    "Candidate",
    "Edge",
    "Limits",
    "MemoryLimitError",
    "MeshSearch",
    "NoChoiceError",
    "Node",
    "OperationPlan",
    "Plan",
    "Problem",
    "SearchLimitError",
    "Tried",
    "search",
    "search_meshes",
    "shapes",
]
