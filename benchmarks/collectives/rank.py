# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank of `run.py` in a process of its own; `rank_group.py` is the other side.

    python benchmarks/collectives/rank.py '{"backend": "tensorflow", "rank": 0, ...}'

The backends are `tensorflow_backend.py` and `gloo_backend.py`. Only the standard library is
imported here: the ranks of gloo may run under another interpreter, which has PyTorch and no more.

Commands come as JSON lines on stdin, events go as JSON lines to stdout, one for each command:

* {"do": "prepare", "ops": [...], "bytes": N}: build each op for a tensor of N bytes, check what it
  returns, and call it twice more; "prepared", with {op: reason} for those that the backend lacks;
* {"do": "release"}: drop what was prepared; "released";
* {"do": "arm", "op": ..., "calls": N}: "armed";
* {"do": "go", "at": T}: make the calls from the moment T of the clock CLOCK_MONOTONIC, which all
  processes of the machine share; "timed", with the seconds that they took;
* {"do": "usage"}: "usage", with CPU seconds (user and system, of all threads) and counters since
  "arm".

The process ends when stdin does, also in the middle of a call.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import queue
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

OPS = ("all_reduce", "reduce_scatter", "all_gather", "rs_ag")
# Prime, so that no chunk repeats another. Sums of so few are exact in float32, in any order.
PERIOD = 65521
_WARM_UP_CALLS = 2
_BLOCK = 1 << 20  # elements


class UnsupportedError(Exception):
    """The backend has no such op; the text says why."""


class WrongValueError(Exception):
    """An op returned other values than it must."""


class PortTakenError(Exception):
    """Another process has taken the port of this rank."""


class Backend(Protocol):
    """What a rank makes its calls with."""

    def prepare(self, op: str, elements: int) -> None:
        """Build an op for a tensor of so many float32 elements, and check its result.

        Raises:
          UnsupportedError: the backend lacks the op.
          WrongValueError: the result is not what it must be.
        """

    def call(self, op: str) -> Callable[[], Any]:
        """Return a prepared op as a function that makes one call and waits until it has ended."""

    def release(self) -> None:
        """Drop all that was prepared."""

    def counters(self) -> dict[str, int]:
        """Return what the process has counted so far; empty where nothing counts."""


def offset(ranks: int, rank: int) -> int:
    """Return what is added to `index % PERIOD * ranks` in the tensors.

    Args:
      ranks: 1 for what one rank contributes; more for the sum over so many.
      rank: whose contribution; 0 for the tensor that is gathered.

    Returns:
      A whole number: `rank`, or the sum of all ranks.
    """
    return rank if ranks == 1 else ranks * (ranks - 1) // 2


def ring_chunk(elements: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the chunk of one rank in TensorFlow's ring, for float32.

    Args:
      elements: of the whole tensor.
      ranks: of the ring.
      rank: whose chunk.

    Returns:
      Where it begins and ends; behind the last element, chunks are empty.
    """
    # A chunk of more than 4 MiB is cut in two.
    parts = 2 if elements * 4 // ranks > 4 << 20 else 1
    chunk = -(-elements // (ranks * parts))
    chunk += 16 - chunk % 16  # 64 bytes, in full also where nothing is missing
    chunk *= parts
    return min(rank * chunk, elements), min((rank + 1) * chunk, elements)


def equal_chunk(elements: int, ranks: int) -> int:
    """Return the elements of each of `ranks` equal chunks; the last one may need padding."""
    return -(-elements // ranks)


def blocks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a range: what is made for a block alone takes little memory, however long the range."""
    for at in range(begin, end, _BLOCK):
        yield at, min(at + _BLOCK, end)


def mismatch(
    op: str, rank: int, wrong: int, count: int, index: int, got: float, want: float
) -> str:
    """Return the text of a `WrongValueError`."""
    return (
        f"rank {rank}, op {op}: {wrong} of {count} values are wrong, the first at index {index}: "
        f"got {got!r}, expected {want!r}"
    )


class Rank:
    """The commands of one rank."""

    def __init__(self, backend: Backend):
        """Serve commands with that backend."""
        self._backend = backend
        self._call: Callable[[], Any] = lambda: None
        self._calls = 0
        self._before: tuple[float, dict[str, int]] = (0.0, {})

    def serve(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do one command, and return its event.

        Raises:
          ValueError: the command is unknown.
          WrongValueError: an op returned other values than it must.
        """
        match command["do"]:
            case "prepare":
                return {"event": "prepared", "unsupported": self._prepare(command)}
            case "release":
                self._release()
                return {"event": "released"}
            case "arm":
                self._call, self._calls = self._backend.call(command["op"]), command["calls"]
                self._before = (_cpu_s(), self._backend.counters())
                return {"event": "armed"}
            case "go":
                return {"event": "timed", "seconds": self._run(command["at"])}
            case "usage":
                return {"event": "usage", **self._usage()}
        raise ValueError(
            f"unknown command {dict(command)}; expected prepare, release, arm, go or usage"
        )

    def _prepare(self, command: Mapping[str, Any]) -> dict[str, str]:
        self._release()
        unsupported = {}
        for op in command["ops"]:
            try:
                self._backend.prepare(op, command["bytes"] // 4)
            except UnsupportedError as e:
                unsupported[op] = str(e)
                continue
            call = self._backend.call(op)
            for _ in range(_WARM_UP_CALLS):
                call()
        _give_back_memory()
        return unsupported

    def _release(self) -> None:
        self._call = lambda: None  # it holds its tensors
        self._backend.release()
        _give_back_memory()

    def _run(self, at: float) -> float:
        call = self._call
        time.sleep(max(0.0, at - time.monotonic()))
        begin = time.monotonic()
        for _ in range(self._calls):
            call()
        return time.monotonic() - begin

    def _usage(self) -> dict[str, Any]:
        cpu_s, counters = self._before
        now = self._backend.counters()
        grown = {name: now[name] - counters.get(name, 0) for name in now}
        return {"cpu_s": _cpu_s() - cpu_s, "counters": grown}


def _give_back_memory() -> None:
    """Give unused memory back to the system: other ranks are about to need it."""
    gc.collect()  # functions are cycles, and hold tensors
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def make_backend(spec: Mapping[str, Any]) -> Backend:
    """Join the group that a specification describes.

    Args:
      spec: "backend" (tensorflow or gloo), "rank", "ranks"; for tensorflow "protocol" and
        "addresses" (host:port by rank), for gloo "store" (a file that the ranks meet by) and
        "interface" (the network interface that they take).

    Raises:
      PortTakenError: the rank's port is in use.
      ImportError: the backend is not installed.
    """
    if spec["backend"] == "gloo":
        from benchmarks.collectives.gloo_backend import Gloo

        return Gloo(spec["rank"], spec["ranks"], spec["store"], spec["interface"])
    from benchmarks.collectives.tensorflow_backend import TensorFlow

    return TensorFlow(spec["rank"], spec["addresses"], spec["protocol"])


def main(make: Callable[[Mapping[str, Any]], Rank] | None = None) -> None:
    """Run the rank in argv[1]; leave with os._exit, as this process may own a server.

    Args:
      make: the rank of a specification; by default one with `make_backend`.
    """
    make = make or (lambda spec: Rank(make_backend(spec)))
    # What libraries print goes to stderr, and events alone to stdout.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: Mapping[str, Any]) -> None:
        print(json.dumps(event), file=events, flush=True)

    commands: queue.Queue[Mapping[str, Any]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, name="commands", daemon=True).start()
    try:
        rank = make(json.loads(sys.argv[1]))
        emit({"event": "ready"})
        while True:
            emit(rank.serve(commands.get()))
    except BaseException as e:  # reported to the caller, whatever it is; the process ends
        text = f"{type(e).__name__}: {e}"
        emit({"event": "error", "kind": type(e).__name__, "text": text,
              "traceback": traceback.format_exc()})  # fmt: skip
        os._exit(1)


if __name__ == "__main__":
    # Run by path, Python puts this folder first on sys.path: its modules are not top-level ones.
    # In its place goes the checkout, and last: an installed tf_fuse has a library, while the
    # checkout's need not have one.
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if p != _folder] + [
        os.path.dirname(os.path.dirname(_folder))
    ]
    # The backends raise the errors of this module: not those of a second copy of it.
    from benchmarks.collectives import rank as collective_rank

    collective_rank.main()
