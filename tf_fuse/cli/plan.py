# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse plan`: find the cheapest layouts of a function over a mesh of devices."""

from __future__ import annotations

import sys
from typing import Any

from tf_fuse import _json_output
from tf_fuse._console import open_console
from tf_fuse.cli.load.program import ProgramError, named_function
from tf_fuse.layout import LayoutError, LayoutRules, Mesh, plan, to_sbp


def run(
    program: str | None,
    mesh: str,
    mode: str,
    rules: str | None,
    memory_limit_bytes: int | None,
    save_path: str | None,
    json_path: str | None,
) -> int:
    """Plan a function and print the plan; return the exit status.

    Args:
      program: MODULE:NAME of a Python function without parameters, which returns (function, args)
        as `tf_fuse.layout.plan` takes them, or (function, args, more) with a dict of its other
        arguments, such as dimensions; None for a bundled training step of two layers.
      mesh: axes and their sizes, as "x:2;y:2".
      mode: see `tf_fuse.layout.plan`; so are the next two.
      rules: which named dimension is split over which axis; None for none.
      memory_limit_bytes: of a device; None for none.
      save_path: where to write the plan, for `FunctionProblem.load`; None for nowhere.
      json_path: where to write layouts and costs as JSON beside the tables; "-" for standard
        output, in place of them.

    Returns:
      0; or 1, with a message on standard error, if there is no plan or a file cannot be written.
    """
    try:
        function, args, *more = _load(program) if program else _two_layers()
        options: dict[str, Any] = {"mode": mode, "memory_limit_bytes": memory_limit_bytes}
        if rules:
            options["rules"] = LayoutRules.from_text(rules)
        found = plan(function, Mesh.from_text(mesh), args, **(more[0] if more else {}), **options)
        if save_path:
            found.save(save_path)
        if not _json_output.write(_described(found, mesh, mode), json_path):
            console = open_console()
            console.print(found.table(most=20))
            console.print(found.why())
    except (LayoutError, ProgramError, OSError) as error:
        print(f"tf-fuse: error: {error}", file=sys.stderr)
        return 1
    return 0


def _load(program: str) -> tuple[Any, ...]:
    """Return what the named Python function returns."""
    made = named_function(program)()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise ProgramError(
            f"{program} returned {_kind(made)}; it must return (function, args), or (function, "
            "args, more), as tf_fuse.layout.plan takes them"
        )
    own = {"mesh", "mode", "rules", "memory_limit_bytes"}
    if len(made) == 3 and (twice := sorted(own & made[2].keys())):
        raise ProgramError(f"{program} returned {', '.join(twice)}; give it on the command line")
    return made


def _kind(made: Any) -> str:
    return f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__


def _two_layers() -> tuple[Any, Any]:
    """Return a training step of two dense layers by SGD, and its arguments."""
    import tensorflow as tf

    sizes = {"w": [256, 512], "v": [512, 8]}
    w, v = (tf.Variable(tf.ones(shape), name=name) for name, shape in sizes.items())

    def step(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(x @ w) @ v
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for variable, gradient in zip((w, v), tape.gradient(loss, [w, v]), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, [tf.TensorSpec([64, 256]), tf.TensorSpec([64], tf.int32)]


def _described(found: Any, mesh: str, mode: str) -> dict[str, Any]:
    return {
        "function": found.function.name,
        "mesh": mesh,
        "mode": mode,
        "seconds": found.seconds,
        "memory_bytes": found.memory_bytes,
        "optimal": found.plan.optimal,
        "inputs": {name: to_sbp(layout) for name, layout in found.inputs.items()},
        "variables": {name: to_sbp(layout) for name, layout in found.variables.items()},
    }
