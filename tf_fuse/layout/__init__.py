# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the cheapest layouts of tensors over meshes of devices, and run functions in them.

    from tf_fuse import layout

    mesh = layout.Mesh({"rows": 2, "cols": 4})
    rules = layout.LayoutRules.from_text("batch:rows;hidden:cols")
    x = [layout.Dimension("batch", 64), layout.Dimension("hidden", 512)]
    source = rules.layout(x, mesh)
    target = layout.from_sbp(mesh, (64, 512), "(B, S(0))")
    print(layout.plan_relayout(source, target))
    layout.show(target)

Folders: `types` (meshes, layouts, operations), `operators` (rules), `relayout` (paths between
layouts), `strategies`, `cost`, `profile` (measured rates), `trace` (a `tf.function`'s operations),
`optimize` (the search), `planning` (from a function to a plan) and `execution` (runs a plan).

Only `trace`, `profile` and `execution`, and so `plan`, `execute` and `lay_out`, import TensorFlow,
when they are first used.
Sources:

* named dimensions, meshes and rules: "Mesh-TensorFlow: Deep Learning for Supercomputers" (Shazeer
  et al., 2018), section 3;
* device matrix and tensor map: MindSpore's auto parallel;
* S(i), B and P, and what steps between them cost: "OneFlow: Redesign the Distributed Deep Learning
  Framework from Scratch" (Yuan et al., 2021), section 3.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_fuse._deprecated.former_keyword import former_keyword
from tf_fuse.layout.planning.by_rules import plan_by_rules
from tf_fuse.layout.planning.mesh_planning import MeshPlans, plan_meshes
from tf_fuse.layout.planning.pipeline import (
    FunctionPlan,
    FunctionProblem,
    function_problem,
    plan,
)
from tf_fuse.layout.planning.rates import assumed_rates
from tf_fuse.layout.relayout.link_rates import Hosts, Link
from tf_fuse.layout.relayout.redistribution import RelayoutPlan, RelayoutStep, plan_relayout
from tf_fuse.layout.relayout.steps import ALL_STEPS, MANY_AXES_STEPS, ONE_AXIS, StepSet
from tf_fuse.layout.types.dimension_rules import Dimension, LayoutRules
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.notation import (
    MindSporeLayout,
    from_mindspore,
    from_sbp,
    to_mindspore,
    to_rules,
    to_sbp,
)
from tf_fuse.layout.types.picture import picture, show
from tf_fuse.layout.types.specs import (
    Partial,
    Replicate,
    Shard,
    from_placements,
    from_spec,
    to_placements,
    to_spec,
)
from tf_fuse.layout.types.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from tf_fuse.layout.by_size import SizedExecution
    from tf_fuse.layout.execution.devices import Devices
    from tf_fuse.layout.execution.execute import Execution
    from tf_fuse.layout.execution.variables.made_in_parts import variable_in_parts
    from tf_fuse.layout.keras.model import KerasExecution
    from tf_fuse.layout.trace.layout_marks import constrain

# What needs TensorFlow, and the modules that have it.
_LAZY_NAMES = {
    "constrain": "tf_fuse.layout.trace.layout_marks",
    "variable_in_parts": "tf_fuse.layout.execution.variables.made_in_parts",
}


def __getattr__(name: str) -> Any:
    """Import what runs in traced functions when it is first used, since it needs TensorFlow."""
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    return found


def execute(plan: FunctionPlan, devices: Any = None, data_per_process: bool = False) -> Execution:
    """Run a plan: a callable like the function that was planned.

    The function's variables become shards on the devices. They stay the same objects, and are read,
    assigned to and saved whole.

    Args:
      plan: of `plan`.
      devices: local devices in the mesh's order, as ["CPU:0", "CPU:1"], which are logical CPUs by
        default; in several processes what `connect` returned, or a `dtensor.Mesh` with the plan's
        axes.
      data_per_process: whether each process feeds its part of the batch (`num_shards` and
        `shard_id` of what is returned), and not all of them the same whole one. The parts, in the
        order of the processes, are the batch. What has no batch is fed whole.

    Returns:
      The callable. It takes ordinary tensors, and returns ordinary ones.

    Raises:
      LayoutError: there are not the devices of the plan's mesh; a variable lies otherwise already;
        or an operation cannot run as planned. It says which one, and what to do.
    """
    from tf_fuse.layout.execution.execute import Execution

    return Execution(plan, devices, data_per_process)


def connect(mesh: Mesh) -> Devices:
    """Join the processes of TF_CONFIG, and return their devices for `execute` and `lay_out`.

    Call it in each process before TensorFlow uses any device. Each starts a server, of the protocol
    `grpc+fuse` if `rpc_layer` names no other one, and has as many logical CPUs as the others, which
    lie next to each other in the mesh. Later calls return the devices of other meshes of that many.

    Args:
      mesh: of the devices of all processes.

    Raises:
      LayoutError: TF_CONFIG is missing or wrong; the mesh cannot be divided among its processes; or
        TensorFlow has used devices already.
    """
    from tf_fuse.layout.execution import processes

    return processes.connect(mesh)


@former_keyword("pins", "constraints")
def lay_out(
    model: Any, mesh: Mesh, devices: Any = None, data_per_process: bool = False, **options: Any
) -> KerasExecution | SizedExecution:
    """Make `fit`, `evaluate` and `predict` of a Keras model, or a function, run by plans.

    The first batch of a shape plans its step, with the updates of the optimizer and the metrics,
    and the step runs as `execute` says. The first plan lays the variables out, and plans of other
    steps and shapes keep their layouts, so train first. If a batch of another size cannot be split
    as the options ask, its plan ignores them: in mode "data" all devices do the same, in other
    modes the cheapest plan runs.

    Args:
      model: a compiled model of Keras 3 on TensorFlow, or of tf_keras; or a function, which what is
        returned takes the place of: it plans at the first call with each shape.
      mesh: the devices.
      devices: as of `execute`.
      data_per_process: whether each process gives `fit` and its like its part of each batch; its
        method `parts` makes them of a dataset. Metrics and predictions are of the whole batch.
      **options: as of `plan`: allowed, constraints, dimensions, layouts, limits, links,
        memory_limit_bytes, mode, rates, renamed, rules and steps. What is fed is named x, y and
        sample_weight; of several inputs x_ and the key or number. Names of variables that a step
        does without are left out for it.

    Returns:
      The execution: it lists the plans, plans ahead of need, and releases the model.

    Raises:
      LayoutError: the model is of another kind, runs by plans already, or an option is unknown.
        Steps raise what `plan` and `execute` raise, and if the model is compiled with run_eagerly.
    """
    from tf_fuse.layout.by_size import SizedExecution
    from tf_fuse.layout.keras.model import KerasExecution

    if callable(model) and not hasattr(model, "make_train_function"):
        if data_per_process:
            raise LayoutError(
                "data_per_process=True of lay_out is for Keras models, got a function; give "
                "data_per_process=True to layout.execute"
            )
        return SizedExecution(model, mesh, devices, options)
    return KerasExecution(model, mesh, devices, options, data_per_process)


__all__ = [
    "ALL_STEPS",
    "MANY_AXES_STEPS",
    "ONE_AXIS",
    "Dimension",
    "FunctionPlan",
    "FunctionProblem",
    "Hosts",
    "LayoutError",
    "LayoutRules",
    "Link",
    "Mesh",
    "MeshPlans",
    "MindSporeLayout",
    "Partial",
    "RelayoutPlan",
    "RelayoutStep",
    "Replicate",
    "Shard",
    "StepSet",
    "TensorLayout",
    "assumed_rates",
    "connect",
    "constrain",
    "execute",
    "from_mindspore",
    "from_placements",
    "from_sbp",
    "from_spec",
    "function_problem",
    "lay_out",
    "picture",
    "plan",
    "plan_by_rules",
    "plan_meshes",
    "plan_relayout",
    "show",
    "to_mindspore",
    "to_placements",
    "to_rules",
    "to_sbp",
    "to_spec",
    "variable_in_parts",
]
