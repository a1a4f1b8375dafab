# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The cheapest strategy for each operation of a model, under a memory limit.

    from tf_fuse.layout import optimize

    plan = optimize.search(problem)
    rich.print(plan.table(), plan.why())
    plan.save("model.plan")
    plan = optimize.Plan.load("model.plan", problem)

A problem knows nothing of layouts: operations have candidates with times and bytes, and edges have
times between those of their ends. How it is solved is told in `solver.py`.
"""

from tf_fuse.layout.optimize.compare import Alternative
from tf_fuse.layout.optimize.errors import MemoryLimitError, NoChoiceError, SearchTimeoutError
from tf_fuse.layout.optimize.meshes import MeshSearch, Tried, search_meshes, shapes
from tf_fuse.layout.optimize.modes import AUTO, MODES, PROPAGATE, search
from tf_fuse.layout.optimize.plan import OperationPlan, Plan
from tf_fuse.layout.optimize.problem import DATA, Candidate, Edge, Node, Problem
from tf_fuse.layout.optimize.solver import Limits

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
    "SearchTimeoutError",
    "Tried",
    "search",
    "search_meshes",
    "shapes",
]
