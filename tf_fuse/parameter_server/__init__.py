# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Place and split variables over parameter servers by what they cost.

With the option `place_variables`, `tf.distribute.ParameterServerStrategy` places variables by
their bytes and traffic; docs/parameter_servers.md is for users.
"""

from typing import Any

from tf_fuse._deprecated.former_keyword import warn_of
from tf_fuse.parameter_server.costs import Costs
from tf_fuse.parameter_server.partitioning.partitioner import CostPartitioner
from tf_fuse.parameter_server.partitioning.pieces import pieces
from tf_fuse.parameter_server.placement.device_setter import PsStrategy
from tf_fuse.parameter_server.placement.planned_places import PlacementPlan
from tf_fuse.parameter_server.planning import build, plan
from tf_fuse.parameter_server.repeated_steps import repeat
from tf_fuse.parameter_server.report import (
    placement_report,
    print_placement_report,
    set_costs,
)
from tf_fuse.parameter_server.update_measurement import measure_costs

__all__ = [
    "CostPartitioner",
    "Costs",
    "PlacementPlan",
    "PsStrategy",
    "build",
    "measure_costs",
    "pieces",
    "placement_report",
    "plan",
    "print_placement_report",
    "repeat",
    "set_costs",
]


def __getattr__(name: str) -> Any:
    """Return `PlacementPlan` by its former name."""
    if name == "Plan":
        warn_of("tf_fuse.parameter_server.Plan", "PlacementPlan", stacklevel=3)
        return PlacementPlan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
