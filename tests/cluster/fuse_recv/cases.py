# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions whose values must not depend on how tensors travel.

Each case makes its variables and functions anew, so that a change of the option applies to it, and
returns a list of values. `Bench.call` runs a function on each worker in turn. Those with branches
and loops are in `flow_cases.py`, those of types and shapes in `tensor_cases.py`, of updates in
`variable_cases.py`, and of calls in `function_cases.py`.
"""

from __future__ import annotations

# Each of these registers its cases.
from tests.cluster.fuse_recv import (
    flow_cases,  # noqa: F401
    function_cases,  # noqa: F401
    tensor_cases,  # noqa: F401
    variable_cases,  # noqa: F401
)
from tests.cluster.fuse_recv.bench import CASES, Bench

__all__ = ["CASES", "Bench"]
