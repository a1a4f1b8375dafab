# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layouts of tensors over meshes of devices, and the cheapest way from one to another.

    from tf_fuse import layout

    mesh = layout.Mesh({"rows": 2, "cols": 4})
    rules = layout.LayoutRules.from_text("batch:rows;hidden:cols")
    x = [layout.Dimension("batch", 64), layout.Dimension("hidden", 512)]
    source = rules.layout(x, mesh)
    target = layout.from_sbp(mesh, (64, 512), "(B, S(0))")
    print(layout.plan_relayout(source, target))
    layout.show(target)

Operations, their strategies and what these cost: `tf_fuse.layout.operation`, `.operators`,
`.strategy`, `.cost`, `.edges`, `.forks`, `.memory` and `.calibration`; names of dimensions:
`.propagation` and `.named`.

Layouts of a whole `tf.function`: `plan`, by `.trace`, `.planning` and the search, `.optimize`; over
all meshes of a number of devices: `plan_meshes`; and `execute` runs a plan, by `.execution`.
Rates of a mesh: `.measurement` and `.rates_file`.

Nothing of it needs TensorFlow or devices, but for `tf_fuse.layout.dtensor`, which runs relayouts on
`tf.experimental.dtensor`, `plan` and `execute`. Sources:

* named dimensions, meshes and rules: "Mesh-TensorFlow: Deep Learning for Supercomputers" (Shazeer
  et al., 2018), section 3;
* device matrix and tensor map: MindSpore's auto parallel;
* S(i), B and P, and what steps between them cost: "OneFlow: Redesign the Distributed Deep Learning
  Framework from Scratch" (Yuan et al., 2021), section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_fuse.layout.by_rules import plan_by_rules
from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.links import Link
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.mesh_planning import MeshPlans, plan_meshes
from tf_fuse.layout.notation import (
    MindSporeLayout,
    from_mindspore,
    from_sbp,
    to_mindspore,
    to_rules,
    to_sbp,
)
from tf_fuse.layout.picture import picture, show
from tf_fuse.layout.planning import (
    FunctionPlan,
    FunctionProblem,
    assumed_rates,
    function_problem,
    plan,
)
from tf_fuse.layout.redistribution import RelayoutPlan, RelayoutStep, plan_relayout
from tf_fuse.layout.rules import Dimension, LayoutRules
from tf_fuse.layout.steps import ALL_STEPS, MANY_AXES_STEPS, ONE_AXIS, StepSet
from tf_fuse.layout.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from tf_fuse.layout.execution.execution import Execution
    from tf_fuse.layout.execution.keras_steps import KerasExecution


def execute(plan: FunctionPlan, devices: Any = None) -> Execution:
    """Makes a plan run: a callable like the function that was planned.

    The function's variables become parts on the devices; they stay the objects that they are, and
    are read, assigned to and saved whole.

    Args:
      plan: of `plan`.
      devices: local devices in the mesh's order, as ["CPU:0", "CPU:1"], which are logical CPUs by
        default; or what `tf_fuse.layout.dtensor.device_mesh` returns, also of several processes.

    Returns:
      The callable. It takes ordinary tensors, and returns ordinary ones.

    Raises:
      LayoutError: there are not the devices of the plan's mesh; a variable lies otherwise already;
        or an operation cannot run as planned. It says which one, and what to do.
    """
    from tf_fuse.layout.execution.execution import Execution

    return Execution(plan, devices)


def lay_out(model: Any, mesh: Mesh, devices: Any = None, **options: Any) -> KerasExecution:
    """Makes `fit`, `evaluate` and `predict` of a Keras model run by plans.

    Each step, with the updates of the optimizer and the metrics, is planned when the first batch of
    its shape comes, and runs as `execute` says. The first plan lays the variables out, and those of
    other steps and shapes keep that: what runs first should be the training. A batch of another
    size that cannot be split as is asked for is planned without what was asked for: in mode "data"
    all devices do it alike, in others it is laid out as is cheapest.

    Args:
      model: a compiled model of Keras 3 on TensorFlow, or of tf_keras.
      mesh: the devices.
      devices: as of `execute`.
      **options: as of `plan`: allowed, dimensions, limits, links, memory_limit_bytes, mode, pins,
        rates, renamed, rules and steps. What is fed is named x, y and sample_weight; of several
        inputs x_ and the key or number. Names of variables that a step does without are left out
        for it.

    Returns:
      What tells the plans, makes one before it is needed, and releases the model.

    Raises:
      LayoutError: it is no such model, runs by plans already, or an option is unknown. Steps raise
        what `plan` and `execute` do, and where the model is compiled with run_eagerly.
    """
    from tf_fuse.layout.execution.keras_steps import KerasExecution

    return KerasExecution(model, mesh, devices, options)


__all__ = [
    "ALL_STEPS",
    "MANY_AXES_STEPS",
    "ONE_AXIS",
    "Dimension",
    "FunctionPlan",
    "FunctionProblem",
    "LayoutError",
    "LayoutRules",
    "Link",
    "Mesh",
    "MeshPlans",
    "MindSporeLayout",
    "RelayoutPlan",
    "RelayoutStep",
    "StepSet",
    "TensorLayout",
    "assumed_rates",
    "execute",
    "from_mindspore",
    "from_sbp",
    "function_problem",
    "lay_out",
    "picture",
    "plan",
    "plan_by_rules",
    "plan_meshes",
    "plan_relayout",
    "show",
    "to_mindspore",
    "to_rules",
    "to_sbp",
]
