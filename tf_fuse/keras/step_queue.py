# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps that workers run while the coordinator goes on."""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow.variables import coordinator as coordinators
from tf_fuse._tensorflow.variables import coordinator_results, parameter_server_strategy
from tf_fuse.keras import checks
from tf_fuse.keras.packing import Packing
from tf_fuse.parameter_server import steps_in_flight

# A slow worker does not stop the others before they have run so many times their calls.
_OLDEST = 16
_MOMENT_S = 0.02


class Call:
    """A call that a worker runs: one or more steps.

    Args:
      result: of `ClusterCoordinator.schedule`.

    Attributes:
      packing: of what it returns; None if that is not packed.
      is_counted: whether the metrics have what its steps add.
    """

    def __init__(self, result: Any, packing: Packing | None = None):
        self._result = result
        self.packing = packing
        self.is_counted = False

    def is_done(self) -> bool:
        """Return whether the call has ended."""
        return coordinator_results.is_done(self._result)

    def wait(self, seconds: float) -> None:
        """Wait until the call has ended, but not longer."""
        coordinator_results.wait(self._result, seconds)

    def fetch(self) -> Any:
        """Wait for the call, and return what it returned.

        Returns:
          NumPy arrays if it is packed, otherwise tensors.

        Raises:
          tf.errors.OpError: a step failed.
        """
        while not self.is_done():
            self.wait(_MOMENT_S)
        return self._result.get()

    def steps(self) -> int:
        """Wait for the call, and return how many steps it has run."""
        arrays = self.fetch()
        return self.packing.steps(arrays) if self.packing else 0

    def taken(self) -> list[int]:
        """Wait for the call; return the numbers of the batches that it took of a worker's data."""
        assert self.packing is not None
        return self.packing.taken(self.fetch())

    def worker(self) -> int:
        """Return the worker that has run the call."""
        return coordinator_results.worker_of(self._result)

    def numpy(self) -> Any:
        """Return what `fetch` does, as NumPy arrays; Keras and callbacks ask a tensor for it."""
        import keras

        return keras.tree.map_structure(keras.ops.convert_to_numpy, self.fetch())

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the one array that the steps returned."""
        import numpy as np

        return np.asarray(self.numpy(), *args, **kwargs)


class StepQueue:
    """Runs calls on the workers of a `ParameterServerStrategy`; they end in any order.

    A call runs on whichever worker is free. If that worker is lost, another one runs the call again
    with the same arguments.

    Attributes:
      strategy: the `ParameterServerStrategy`.
      coordinator: its `ClusterCoordinator`.
      workers: number of workers.
      put_back: returns how many calls, of all queues, have run again as a task was lost.
    """

    def __init__(self, strategy: Any):
        import tensorflow as tf

        self.strategy = strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.workers = parameter_server_strategy.worker_count(strategy.extended)
        self._in_flight = steps_in_flight.per_worker()
        self.put_back = coordinators.count_put_back(self.coordinator)
        self._begun: collections.deque[Call] = collections.deque()
        self._lock = threading.Lock()  # the worker's threads look at what has begun

    def __len__(self) -> int:
        return len(self._begun)

    def most(self) -> int:
        """Return how many calls are under way if all workers are busy.

        Of each worker, the result of one more comes, and yet another one waits, so that the worker
        does not wait for the coordinator.
        """
        return (self._in_flight + 2) * self.workers

    def trace(
        self,
        function: Callable[..., Any],
        specs: Sequence[Any],
        packing: Packing | None,
        late: bool = False,
    ) -> Callable[..., Call]:
        """Trace a function; return what begins a call of it on the next free worker.

        Args:
          function: gets arguments of the specs; `packing` packs what it returns.
          specs: of its arguments.
          packing: None to leave it unpacked.
          late: whether a worker runs its next call while what it returned comes; with several steps
            in flight, it has others to run, and what fetches here saves a change of threads.
        """
        import tensorflow as tf

        traced = tf.function(function, autograph=False)
        with parameter_server_strategy.being_scheduled(self.strategy.extended):
            concrete = traced.get_concrete_function(*specs)
        checks.check_captures(concrete)
        late = late and self._in_flight == 1
        scheduler = coordinators.Scheduler(
            self.coordinator, concrete, as_arrays=packing is not None, late=late
        )

        def begin(*args: Any) -> Call:
            return Call(scheduler.schedule(args), packing)

        return begin

    def add(self, call: Call) -> None:
        """Take a call that has begun."""
        with self._lock:
            self._begun.append(call)

    def is_full(self) -> bool:
        """Return whether all workers are busy, or very many calls wait for an older one."""
        running = sum(not one.is_done() for one in self._begun)
        return running >= self.most() or len(self._begun) >= _OLDEST * self.most()

    def wait_for_room(self) -> None:
        """Wait until `is_full` may have changed, at most for a moment."""
        running = [one for one in self._begun if not one.is_done()]
        if running:
            running[0].wait(_MOMENT_S)

    def has_ended(self, in_order: bool) -> bool:
        """Return whether `take` need not wait."""
        return any(one.is_done() for one in itertools.islice(self._begun, 1 if in_order else None))

    def take(
        self, in_order: bool, look: Callable[[Call], Any] = lambda call: None
    ) -> tuple[Call, Any]:
        """Wait for a call, and leave it out.

        Args:
          in_order: whether it is the oldest call; else one that ends first.
          look: gets the call, before `done` leaves it out.

        Returns:
          The call, and what `look` returns.

        Raises:
          tf.errors.OpError: a step failed; the others are given up.
        """
        with self.giving_up_after_errors():
            while not self.has_ended(in_order):
                self._begun[0].wait(_MOMENT_S)
            call = next(one for one in self._begun if in_order or one.is_done())
            call.fetch()  # raises what a step raised
            with self._lock:
                self._begun.remove(call)
                return call, look(call)

    def done(self, look: Callable[[list[Call]], Any]) -> Any:
        """Look at calls that have ended without an error; any thread may do so.

        Args:
          look: gets them.

        Returns:
          What `look` returns.
        """
        import tensorflow as tf

        with self._lock:
            found = []
            for call in self._begun:
                with contextlib.suppress(tf.errors.OpError):
                    if call.is_done():
                        call.fetch()
                        found.append(call)
            return look(found)

    @contextlib.contextmanager
    def giving_up_after_errors(self) -> Iterator[None]:
        """After an error, forget all calls, and wait until none runs; raise the first one's error.

        The others may have failed because TensorFlow cancelled them. The end of data
        (`StopIteration`) is not an error: the calls under way count.
        """
        import tensorflow as tf

        try:
            yield
        except StopIteration:
            raise
        except BaseException as error:
            # The coordinator would raise an error of a step once more when the next one begins.
            first = self.give_up(wait=isinstance(error, tf.errors.OpError))
            if first is None or first is error:
                raise
            raise first from error

    def give_up(self, wait: bool = True) -> Exception | None:
        """Forget all calls.

        Args:
          wait: until none runs.

        Returns:
          The error of the call that failed first, if nothing has raised it yet.
        """
        import tensorflow as tf

        with self._lock:
            self._begun.clear()
        if wait:
            try:
                self.coordinator.join()
            except tf.errors.OpError as error:
                return error
        return None
