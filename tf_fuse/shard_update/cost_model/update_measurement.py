# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure what an update takes on this machine, in some 30 ms with 24 MiB.

A figure that is too large would shard what does not pay, and what else the machine does can only
make it larger. So each is the best of several tries, by the time that the thread itself has
computed.

The collectives are not measured: all replicas would have to take part.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tf_fuse.shard_update.cost_figures import DEFAULTS, UpdateCosts, within_range
from tf_fuse.sharded_variable.named_variables import aside

# Three arrays of so many elements of four bytes: more than a core's own caches have.
_ELEMENTS = 2 << 20
_PASSES = 3
_LEAST_TRIES = 3
_TRIES = 9
_LIMIT_S = 0.02
# Of the smallest operation, in one try.
_CALLS = 50
# A replica with more cores has no more of the memory's bandwidth.
_MOST_CORES = 4.0
# What a gradient has more when it is sharded takes as long as four operations that Python calls.
_CALLS_PER_GRADIENT = 4.0

_WIRE_OVER_OPERATION = DEFAULTS.wire_ns_per_byte / DEFAULTS.operation_ns_per_byte


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
      ns_per_byte: of an elementwise operation on one core, per byte of the result.
      call_us: of the smallest operation.
      cores: that this process may use.
    """

    ns_per_byte: float
    call_us: float
    cores: int


def costs_here(beside: int, task: str) -> UpdateCosts:
    """Measures, once in a process.

    Args:
      beside: how many replicas share this machine, this one among them.
      task: this one, for the origin.
    """
    return of_replica(_measure(), beside, task)


def of_replica(measured: Measured, beside: int, task: str) -> UpdateCosts:
    """Return what a replica takes that has its share of a machine.

    Without the option all replicas do the whole update, at the same time. So of a machine's cores
    each has its share, which may be less than one.

    Args:
      measured: on one core.
      beside: how many replicas share the machine.
      task: that has measured.
    """
    share = measured.cores / beside
    # (Rounded, for people; and before others are derived, so that they keep their relation.)
    operation = float(f"{measured.ns_per_byte / min(share, _MOST_CORES):.3g}")
    gradient = float(f"{_CALLS_PER_GRADIENT * measured.call_us / min(share, 1.0):.3g}")
    return within_range(
        {
            "operation_ns_per_byte": operation,
            # The bytes that travel are the same; what is added is copies, in memory too.
            "wire_ns_per_byte": _WIRE_OVER_OPERATION * operation,
            "gradient_us": gradient,
        },
        f"measured by {task}",
    )


@functools.cache
def _measure() -> Measured:
    # An operation takes longer in a thread that is in the middle of a call, as this one is.
    with ThreadPoolExecutor(1, "tf_fuse measures") as thread:
        pass_s, call_s = (thread.submit(one).result() for one in (_pass_seconds, _call_seconds))
    return Measured(1e9 * pass_s / (4 * _ELEMENTS), 1e6 * call_s, len(os.sched_getaffinity(0)))


def _pass_seconds() -> float:
    """Of a pass of an update in small: what is new moves an average.

    By NumPy, which takes one core, and takes nothing of TensorFlow's: neither a thread of its pool,
    which other replicas on this machine may want now, nor memory of its allocator.
    """
    import numpy as np

    gradient, average, change = (np.full(_ELEMENTS, value, np.float32) for value in (1.5, 0.5, 0))
    rate = np.float32(0.1)

    def update() -> None:
        np.subtract(gradient, average, out=change)
        np.multiply(change, rate, out=change)
        np.add(average, change, out=average)

    return _best(update) / _PASSES


def _call_seconds() -> float:
    """Of an operation that has nothing to do."""
    from tensorflow.python.eager import context, executor
    from tensorflow.python.framework import constant_op
    from tensorflow.python.ops import gen_math_ops

    with aside("/device:CPU:0"), context.executor_scope(executor.new_executor(enable_async=False)):
        one = constant_op.constant(1.0)

        def calls() -> None:
            for _ in range(_CALLS):
                gen_math_ops.mul(one, one)

        return _best(calls) / _CALLS


def _best(work: Callable[[], None]) -> float:
    """Return seconds of computing of the fastest try."""
    began = time.perf_counter()
    tries: list[float] = []
    while len(tries) < _TRIES:
        if len(tries) >= _LEAST_TRIES and time.perf_counter() - began > _LIMIT_S:
            break
        start = time.thread_time()
        work()
        tries.append(time.thread_time() - start)
    return min(tries)
