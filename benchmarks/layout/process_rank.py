# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One process of `processes.py`; commands and events are those of `collectives/rank.py`.

    python benchmarks/layout/process_rank.py '{"way": "plan", "model": "mlp", "rank": 0, ...}'

The call is "step". "prepare" makes the first steps, and {"do": "finish"} reports "finished", with
the loss of the first step, and of a plan its layouts, bytes and predicted seconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if p != _folder] + [
        os.path.dirname(os.path.dirname(_folder))
    ]

from benchmarks.collectives import rank as base

PLAN = "plan"
SHARDED = "sharded"
STOCK = "stock"
_TOLERANCE = 1e-3
_PLAN_WAIT_S = 400


class Strategy:
    """A worker of MultiWorkerMirroredStrategy, with stock TensorFlow or `shard_weight_update`."""

    def __init__(self, spec: Mapping[str, Any]):
        """Join the others, and traces a step."""
        from benchmarks.shard_update import tensorflow_backend as backend

        if spec["way"] == SHARDED:
            backend._load_ours({"shard_weight_update": True})
        strategy = backend._join(spec["rank"], spec["addresses"], spec["protocol"])
        import tensorflow as tf

        from benchmarks.layout import process_models as models

        with strategy.scope():
            task = models.make(spec["model"], spec["sizes"])
            task.optimizer.build(task.model.trainable_variables)
        weights = task.model.trainable_variables
        own = [tf.constant(one) for one in models.part(task.batch, spec["rank"], spec["ranks"])]

        def replica(*batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = task.loss_of(*batch)
            # Keras sums what the replicas have, and its losses are shares of that sum.
            gradients = tape.gradient(loss, [one.value for one in weights])
            task.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return loss * spec["ranks"]

        step = tf.function(lambda *batch: strategy.run(replica, batch), autograph=False)
        self.step = lambda: step(*own)
        self.about: dict[str, Any] = {"sums_alike": task.sums_alike}

    def loss(self, made: Any) -> float:
        """Return the loss of this process's part."""
        return float(made)


class Plan:
    """A process of a plan that the first one found."""

    def __init__(self, spec: Mapping[str, Any]):
        """Join the others, and run the plan."""
        addresses, rank = spec["addresses"], spec["rank"]
        os.environ["TF_CONFIG"] = json.dumps({
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": rank},
            "rpc_layer": spec["protocol"],
        })  # fmt: skip
        from tf_fuse import layout

        mesh = layout.Mesh.from_text(spec["mesh"])
        devices = layout.connect(mesh)
        import tensorflow as tf

        # As with `shard_weight_update`.
        tf.config.optimizer.set_experimental_options({"fuse_weight_update": True})
        from benchmarks.layout import process_models as models
        from tf_fuse.layout.profile import measure_rates
        from tf_fuse.layout.profile.probe_runner import ExecutionBench

        rates = measure_rates.measure(mesh, ExecutionBench(mesh, devices)).rates
        task = models.make(spec["model"], spec["sizes"])
        weights = task.model.trainable_variables
        task.optimizer.build(weights)
        batch = [tf.constant(one) for one in task.batch]

        def step(*batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = task.loss_of(*batch)
            task.optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        begin = time.monotonic()
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in batch]
        problem = layout.function_problem(step, mesh, specs, rates=rates)
        wanted = float(task.loss_of(*batch)) if rank == 0 and task.sums_alike else None
        plan = _shared(problem, Path(spec["store"]), rank, task.layouts)
        self._run = layout.execute(plan, devices)
        self.about = {
            "wanted": wanted,
            "sums_alike": task.sums_alike,
            "planned_s": time.monotonic() - begin,
            "predicted_s": plan.seconds,
            "received_bytes": self._run.program.received_bytes,
            "collectives": dict(self._run.traffic.collectives),
            "layouts": {name: str(one) for name, one in plan.variables.items()},
        }
        self.step = lambda: self._run(*batch)

    def loss(self, made: Any) -> float:
        """Return the loss, which all processes have."""
        return float(made)


def _shared(problem: Any, store: Path, rank: int, layouts: Mapping[str, Any]) -> Any:
    """Return the plan that the first process finds, and saves for the others."""
    path = store.with_suffix(".plan")
    if rank == 0:
        found = problem.search(layouts=layouts or None)
        found.save(path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
        return found
    end = time.monotonic() + _PLAN_WAIT_S
    while not path.exists():
        if time.monotonic() > end:
            raise base.WrongValueError(f"the first process found no plan in {_PLAN_WAIT_S} s")
        time.sleep(0.1)
    return problem.load(path)


class Replica(base.Rank):
    """The commands of one process."""

    def __init__(self, spec: Mapping[str, Any]):
        """Join the others."""
        self._spec = spec
        self._first = 0.0
        self._trainer: Any = None
        super().__init__(self)  # type: ignore[arg-type]  # it has the calls itself
        self._trainer = Plan(spec) if spec["way"] == PLAN else Strategy(spec)

    def call(self, op: str) -> Callable[[], Any]:
        """Return a step as a function that ends when it is done."""
        assert op == "step"
        return lambda: self._trainer.loss(self._trainer.step())

    def release(self) -> None:
        """Nothing: one model lasts to the end."""

    def counters(self) -> dict[str, int]:
        """Return the counters of our collectives; stock TensorFlow counts nothing."""
        if self._spec["way"] == STOCK:
            return {}
        import tf_fuse

        found = tf_fuse.metrics().items()
        return {name: n for name, n in found if name.startswith("collective_bytes_")}

    def serve(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """See `collectives/rank.py`."""
        match command["do"]:
            case "prepare":
                self._first = self.call("step")()
                for _ in range(command["warm_up"] - 1):
                    self.call("step")()
                wanted = self._trainer.about.get("wanted")
                if wanted is not None and abs(self._first - wanted) > _TOLERANCE * abs(wanted):
                    raise base.WrongValueError(
                        f"the first loss is {self._first}, and one device's is {wanted}"
                    )
                base._give_back_memory()
                return {"event": "prepared"}
            case "finish":
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
                return {"event": "finished", "first_loss": self._first, "peak_bytes": peak,
                        **self._trainer.about}  # fmt: skip
        return super().serve(command)


if __name__ == "__main__":
    base.main(Replica)
