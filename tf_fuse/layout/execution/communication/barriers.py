# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Let processes wait for each other for a limited time, by TensorFlow's coordination service."""

from __future__ import annotations

import itertools
import time
from typing import Final

import tensorflow as tf
from tensorflow.python.eager import context

from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.types.errors import LayoutError

# All processes make the same calls, so they reach a barrier at about the same time.
BARRIER_LIMIT_S = 600
# For so long a process whose call failed waits for the others to fail too, which may be slower.
FAILURE_LIMIT_S = 60
# What errors say in the processes whose call another one ends.
_ENDED: Final = "all processes end this call, since"
# Calls that all processes make: the same number at the same place. The count starts again, so
# that barriers reuse names: the coordination service keeps each name while it lives.
_calls = {"so far": 0}
_CALLS: Final = 8
# How often a barrier that fails at once is tried again; each process can make one fail.
_TRIALS: Final = 100


class Barriers:
    """Barriers of the processes that have devices of a mesh."""

    def __init__(self, devices: Devices):
        """Take the devices."""
        self._devices = devices

    def begin_call(self) -> None:
        """Count a call that all processes make in the same order."""
        if self._has_barriers:
            _calls["so far"] = (_calls["so far"] + 1) % _CALLS

    @property
    def _has_barriers(self) -> bool:
        """Whether all processes that have a coordination service have devices of the mesh."""
        processes = self._devices.mesh.size // len(self._devices.names)
        return bool(context.context().coordination_service) and self._devices.processes == processes

    def wait(self, to_do: str, limit_s: float | None = None) -> None:
        """Wait, for a limited time, until all processes are at the same place.

        A collective waits forever, and after one was given up none can run any more. Here no
        collective has begun yet. It waits only if the processes have a coordination service, and
        all of them have devices of the mesh.

        Args:
          to_do: what it is for; a barrier for something else is another one.
          limit_s: how long it waits; BARRIER_LIMIT_S by default.

        Raises:
          LayoutError: one has not come in time.
        """
        if not self._has_barriers:
            return
        limit_s = BARRIER_LIMIT_S if limit_s is None else limit_s
        place = f"tf_fuse/layout/{_calls['so far']}/{to_do}"
        end = time.monotonic() + limit_s
        for trial in itertools.count(1):
            left_ms = round((end - time.monotonic()) * 1000)
            try:
                context.context().wait_at_barrier(place, max(1, left_ms))
                return
            except tf.errors.OpError as error:
                # If an earlier barrier here timed out, the service reports that once all
                # have come, and then forgets it.
                again = isinstance(error, tf.errors.DeadlineExceededError | tf.errors.InternalError)
                if not again or trial == _TRIALS or time.monotonic() >= end:
                    raise LayoutError(
                        f"to {to_do} takes all {self._devices.processes} processes, and they did "
                        f"not all do it within {limit_s} s ({error.message}); do it in all "
                        "of them, as with a ModelCheckpoint in each, and in the same order"
                    ) from error

    def end_failed(self, what: str, number: int, error: Exception) -> None:
        """After a call failed in this process, end it in those where it did not fail.

        They would wait for this process's collectives forever. If it fails in all processes, as for
        a batch that is wrong in all of them, nobody waits, and they can go on. Otherwise no
        collective can run any more.

        Args:
          what: failed.
          number: of this process.
          error: that it raised.
        """
        lost = isinstance(error, tf.errors.UnavailableError) or _ENDED in str(error)
        if lost or not self._has_barriers:
            return
        try:
            self.wait(f"give up {what}", FAILURE_LIMIT_S)
        except LayoutError:
            text = f"{_ENDED} {what} failed in process {number}: {error}"
            context.context().abort_collective_ops(tf.errors.ABORTED, text)
            # TensorFlow's own collectives do not hear of it from each other.
            if not self._devices.plugin:
                context.context().report_error_to_cluster(tf.errors.ABORTED, text)
