# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sum metrics on the coordinator: a step returns what it adds to their variables.

So no step waits for the metrics' servers, no addition is lost between the read and the assignment
of two workers, and a step that runs twice since its worker was lost counts once. Variables that a
step does not only add to stay on their servers.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow.keras.variable import set_value, value_of
from tf_fuse.keras import checks, graphs
from tf_fuse.keras.packing import Packing

_log = logging.getLogger("tf_fuse")


class _Trace:
    """A step that is being traced.

    Attributes:
      additions: by the number of each metric's variable, what the step adds to it, in order.
      refused: numbers of variables to which the step assigns something else.
      held: tensors in place of the variables' values, as references.
    """

    def __init__(self, sums: MetricSums):
        self._numbers = {id(one): i for i, one in enumerate(sums.variables)}
        self._on_servers = {id(one) for one in sums.on_servers()}
        self.additions: list[list[Any]] = [[] for _ in sums.variables]
        self.refused: set[int] = set()
        self.held: set[Any] = set()

    def assign(self, stock: Callable[..., None], variable: Any, value: Any) -> None:
        number = self._numbers.get(id(variable))
        if number is not None:
            added = graphs.added_to(value, value_of(variable))
            if added is None or graphs.depends_on(added, self.held):
                self.refused.add(number)
                raise ValueError(f"{variable.path} is assigned something that is not a sum")
            self.additions[number].append(added)
            set_value(variable, value)
            return
        on_server = id(variable) in self._on_servers
        added = graphs.added_to_variable(value, value_of(variable)) if on_server else None
        if added is None:
            stock(variable, value)
        else:
            value_of(variable).assign_add(added)


_trace: contextvars.ContextVar[_Trace | None] = contextvars.ContextVar("trace", default=None)


def assign(stock: Callable[..., None], self: Any, value: Any) -> None:
    """Extend `Variable._direct_assign`."""
    trace = _trace.get()
    if trace is None:
        stock(self, value)
    else:
        trace.assign(stock, self, value)


class MetricSums:
    """The metrics of a model while steps run.

    Attributes:
      variables: of Keras, to which steps only add, in the order of their additions.
    """

    def __init__(self, model: Any):
        self._model = model
        self.variables = [
            one for one in model.metrics_variables if hasattr(value_of(one), "handle")
        ]
        self._totals: list[Any] | None = None  # NumPy arrays
        self._newest: tuple[Packing, list[Any]] | None = None  # what the newest call returned
        # Compute logs, by the packing of the newest call.
        self._results: dict[Packing, Callable[[list[Any], list[Any]], Any]] = {}
        self._trace: _Trace | None = None

    def on_servers(self) -> list[Any]:
        """Return variables to which steps add in one operation on their server."""
        local = {id(one) for one in self.variables}
        optimizer = self._model.optimizer
        # (Keras's property `iterations` is a quotient if gradients are accumulated.)
        state = optimizer.variables if optimizer else ()
        iterations = [one for one in state if one.name == "iteration"]
        others = [one for one in self._model.metrics_variables if id(one) not in local]
        return [*others, *iterations]

    def step(self, step_function: Callable[[Any], Any], batch: Any) -> dict[str, Any]:
        """Trace a step.

        Args:
          step_function: of Keras; returns logs.
          batch: that it gets.

        Returns:
          "additions": for each of `variables`, a list; "logs": None where `logs` computes them.

        Raises:
          Exception: the step needs variables of metrics on their servers; see `refuse`.
        """
        import tensorflow as tf

        trace = self._trace = _Trace(self)
        token = _trace.set(trace)
        try:
            zeros = [tf.zeros(one.shape, one.dtype) for one in self.variables]
            with self._holding(zeros) as held:
                state = trace.held = {one.ref() for one in held}
                logs = _tensors(step_function(batch))
                effect = graphs.effect_of(held)
                results = _tensors(self._model.get_metrics_result()) if self.variables else {}
        finally:
            _trace.reset(token)
        if effect is not None:
            trace.refused.update(range(len(self.variables)))
            raise ValueError(f"operation {effect!r} of the step is computed from metrics")
        checks.check_logs(self._model, logs)
        if not isinstance(logs, dict):
            logs = {"": logs}
        for name, value in logs.items():
            if not graphs.depends_on(value, state):
                continue
            if not graphs.is_same(value, results.get(name), state):
                trace.refused.update(range(len(self.variables)))
                raise ValueError(f"{name!r} of the step's logs is computed from metrics")
            logs = {**logs, name: None}
        return {"additions": trace.additions, "logs": logs}

    def refuse(self, error: Exception) -> bool:
        """Leave those variables on their servers that prevented the trace of a step.

        Args:
          error: that tracing raised.

        Returns:
          Whether a step is worth another trace; if so, those that were traced are of no more use.
        """
        trace = self._trace
        if trace is None or not self.variables:
            return False
        refused = trace.refused or range(len(self.variables))
        _log.info(
            "metrics of %s stay on servers, where each step reads and adds: %s (%s)",
            self._model.name,
            ", ".join(self.variables[i].path for i in sorted(refused)),
            error,
        )
        self.variables = [one for i, one in enumerate(self.variables) if i not in refused]
        self._results.clear()
        return True

    def add(self, packing: Packing, packed: list[Any]) -> None:
        """Add what the steps of a call returned.

        NumPy's sums have the bits of TensorFlow's, except that these flush denormal numbers.

        Args:
          packing: of what `step` returned: "additions" is a list of those of each step; "logs" the
            last one's.
          packed: NumPy arrays.
        """
        import numpy as np

        if self._totals is None:
            self._totals = [one.numpy() for one in self.variables]
        with np.errstate(all="ignore"):  # TensorFlow does not warn of what is infinite, either
            for additions in packing.numbers["additions"][: packing.steps(packed)]:
                for i, added in enumerate(additions):
                    for number in added:
                        self._totals[i] = self._totals[i] + packing.array(packed, number)
        self._newest = packing, packed

    def logs(self) -> Any:
        """Return the logs of the last step that was added: metrics of all steps since `end`."""
        import tensorflow as tf

        assert self._newest is not None
        packing, packed = self._newest
        totals = self._totals or [one.numpy() for one in self.variables]
        given = [[tf.constant(one) for one in found] for found in (totals, packed)]
        compute = self._results.get(packing)
        if compute is None:
            compute = self._results[packing] = self._trace_results(packing, given)
        logs = compute(*given)
        return logs[""] if list(logs) == [""] else logs

    def store(self) -> None:
        """Assign the sums to the variables, from where callbacks and Keras read them."""
        if self._totals is not None:
            for variable, total in zip(self.variables, self._totals, strict=True):
                value_of(variable).assign(total)

    def end(self) -> None:
        """Assign the sums to the variables, and begin others with what these hold then."""
        self.store()
        self._totals = None

    def give_up(self) -> None:
        """Forget the sums."""
        self._totals = None

    @contextlib.contextmanager
    def _holding(self, values: Sequence[Any]) -> Iterator[list[Any]]:
        """Let variables hold tensors: what reads them in a trace reads these."""
        import tensorflow as tf

        stock = [value_of(one) for one in self.variables]
        held = [tf.identity(one) for one in values]
        try:
            for variable, value in zip(self.variables, held, strict=True):
                set_value(variable, value)
            yield held
        finally:
            for variable, value in zip(self.variables, stock, strict=True):
                set_value(variable, value)

    def _trace_results(self, packing: Any, examples: Sequence[list[Any]]) -> Any:
        """Trace one function that computes logs: each operation of its own would cost time.

        Args:
          packing: of what the workers' calls return.
          examples: of its arguments: totals, and what a call returned.

        Returns:
          A function of these that returns the logs.
        """
        import tensorflow as tf

        def compute(totals: list[Any], packed: list[Any]) -> Any:
            logs = tf.nest.map_structure(
                lambda number: packing.tensor(packed, number), packing.numbers["logs"]
            )
            if any(one is None for one in logs.values()):
                with self._holding(totals):
                    results = _tensors(self._model.get_metrics_result())
                logs = {name: results[name] if one is None else one for name, one in logs.items()}
            return logs

        specs = [[tf.type_spec_from_value(one) for one in example] for example in examples]
        return tf.function(compute, autograph=False).get_concrete_function(*specs)


def _tensors(logs: Any) -> Any:
    """Return logs with the values of Keras's variables in place of the variables."""
    import keras

    return keras.tree.map_structure(value_of, logs)
