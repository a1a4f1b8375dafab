# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The caller's side of `collectives/rank.py`: the ranks of one variant, as an object.

`shard_update/modes.py` does the same with ranks that train.

Each variant has processes of its own, idle between its rounds. So all can be warm at the same time
and run in turn. No process outlives the caller: each ends when its stdin does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from examples import standalone

_RANK_PROGRAM = Path(__file__).resolve().parents[1] / "collectives" / "rank.py"
_PORT_ATTEMPTS = 5
_GRACE_S = 10.0
_LOG_TAIL_LINES = 20
# From the command to the start: all ranks have read it by then, also on a busy machine.
_LEAD_S = 0.02
# What would change the variants' data paths behind their names.
PATHS_VARIABLE = "TF_FUSE_COLLECTIVE_PATHS"


class RankError(RuntimeError):
    """A rank failed, ended or did not answer in time; the text says which, and its last output."""


class _PortTaken(RankError):
    pass


@dataclasses.dataclass(frozen=True)
class Variant:
    """One side of the comparison.

    Attributes:
      name: "stock", "tf_fuse", "tf_fuse[grpc]", "gloo".
      backend: "tensorflow" or "gloo".
      protocol: of TensorFlow's servers.
      path: the only data path that is allowed; None for the library's choice.
      python: the interpreter of the ranks.
    """

    name: str
    backend: str = "tensorflow"
    protocol: str = "grpc"
    path: str | None = None
    python: str = sys.executable

    def env(self) -> dict[str, str]:
        """Return the whole environment of the ranks."""
        env = {name: text for name, text in os.environ.items() if name != PATHS_VARIABLE}
        env.pop("TF_CONFIG", None)
        if self.path:
            env[PATHS_VARIABLE] = self.path
        return {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", **env}


@dataclasses.dataclass(frozen=True)
class Network:
    """Where ranks run, and what is between them.

    Attributes:
      addresses: of the hosts, by which ranks reach each other.
      commands: what to put before a rank's command on each host; it must become the rank (exec).
      interface: the network interface of the first host over which its ranks talk to others.
    """

    addresses: Sequence[str] = ("127.0.0.1",)
    commands: Sequence[Sequence[str]] = ((),)
    interface: str = "lo"

    def host(self, rank: int, ranks: int) -> int:
        """Return the host of a rank: neighbours in the ring share one, as far as they can."""
        return rank * len(self.addresses) // ranks


LOOPBACK = Network()


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What the calls of one round took.

    Attributes:
      calls: how many, of each rank.
      seconds: of the slowest rank, all calls together.
      wire_bytes: that went over the network's interface, whoever sent them.
      cpu_s: user and system CPU seconds of all ranks.
      counters: name to growth, the sum over all ranks; empty where nothing counts.
    """

    calls: int
    seconds: float
    wire_bytes: int
    cpu_s: float
    counters: Mapping[str, int]


def wire_bytes(interface: str, text: str) -> int:
    """Bytes that an interface has carried so far, in both directions.

    Args:
      interface: its name. What "lo" sends is what it receives, and counts once.
      text: /proc/net/dev of its network namespace.

    Raises:
      RankError: there is no such interface.
    """
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            received, sent = (int(numbers.split()[at]) for at in (0, 8))
            return sent if interface == LOOPBACK.interface else sent + received
    raise RankError(f"/proc/net/dev has no interface {interface}, over which the ranks are to talk")


def why_not(python: str, probe: str) -> str | None:
    """Why an interpreter cannot run a line of Python; None when it can."""
    try:
        done = subprocess.run(
            [python, "-c", probe], capture_output=True, text=True, check=False, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{python} cannot be run: {e}"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return f"{python}: {lines[-1] if lines else f'ended with status {done.returncode}'}"


class RankGroup:
    """The processes of one variant."""

    def __init__(
        self,
        variant: Variant,
        ranks: int,
        timeout_s: float,
        network: Network = LOOPBACK,
        *,
        program: Path | None = None,
        spec: Mapping[str, Any] | None = None,
    ):
        """Start the processes, and return at once: `wait_ready` waits.

        Args:
          variant: what they run.
          ranks: how many.
          timeout_s: seconds that a command, or the start, may take.
          network: where they run.
          program: of a rank; `collectives/rank.py` by default.
          spec: what each rank gets beyond who and where it is.
        """
        self.variant, self._ranks, self._timeout_s = variant, ranks, timeout_s
        self._network, self._program, self._spec = network, program or _RANK_PROGRAM, spec or {}
        self._folder = tempfile.TemporaryDirectory(prefix="tf_fuse_ranks_")
        self._processes: list[Any] = []
        self._ports: Any = None  # held while processes start and run
        self._attempts = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self._attempts += 1
        # A new one: ranks of the attempt before may still have something to say.
        self._events: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        # Free in this namespace; whether they are in another one shows when the ranks start.
        cluster = standalone.cluster_package()
        self._ports = cluster.ports.HeldPorts(self._ranks)
        hosts = [self._network.host(rank, self._ranks) for rank in range(self._ranks)]
        spec = {
            **self._spec,
            "backend": self.variant.backend,
            "protocol": self.variant.protocol,
            "ranks": self._ranks,
            "addresses": [
                f"{self._network.addresses[host]}:{port}"
                for host, port in zip(hosts, self._ports.numbers, strict=True)
            ],
            "interface": self._network.interface,
            "store": str(Path(self._folder.name) / f"store-{self._attempts}"),
        }
        for rank in range(self._ranks):
            command = [self.variant.python, str(self._program), json.dumps({**spec, "rank": rank})]
            command = [*self._network.commands[hosts[rank]], *command]
            process = cluster.child_process.PipedProcess(f"rank {rank}")
            process.start(command, self.variant.env(), self._log(rank))
            self._processes.append(process)
            threading.Thread(
                target=_read_events, args=(rank, process, self._events), daemon=True
            ).start()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Wait until all ranks stand; begin anew when somebody has taken one's port meanwhile.

        Raises:
          RankError: a rank failed.
        """
        while True:
            try:
                self._await("ready")
                return
            except _PortTaken:
                if self._attempts == _PORT_ATTEMPTS:
                    raise
                self._end_processes()
                self._start()

    @property
    def apart(self) -> bool:
        """Whether no two ranks are on one host."""
        return self._ranks <= len(self._network.addresses)

    def prepare(self, ops: Sequence[str], size: int) -> dict[str, str]:
        """Build ops for tensors of `size` bytes, and check their results.

        Returns:
          Op to reason, for those that the variant lacks.

        Raises:
          RankError: a rank failed, or a result was not what it must be.
        """
        command = {"do": "prepare", "ops": list(ops), "bytes": size}
        return self.ask(command, "prepared")[0]["unsupported"]

    def release(self) -> None:
        """Let all ranks drop what was prepared, so that others have the memory.

        Raises:
          RankError: a rank failed.
        """
        self.ask({"do": "release"}, "released")

    def measure(self, op: str, calls: int) -> Measurement:
        """Let all ranks make calls of a prepared op, from the same moment on.

        Raises:
          RankError: a rank failed.
        """
        self.ask({"do": "arm", "op": op, "calls": calls}, "armed")
        before = self._wire_bytes()
        timed = self.ask({"do": "go", "at": time.monotonic() + _LEAD_S}, "timed")
        wire_bytes = self._wire_bytes() - before
        usage = self.ask({"do": "usage"}, "usage")
        counters: dict[str, int] = {}
        for event in usage:
            for name, growth in event["counters"].items():
                counters[name] = counters.get(name, 0) + growth
        return Measurement(
            calls=calls,
            seconds=max(event["seconds"] for event in timed),
            wire_bytes=wire_bytes,
            cpu_s=sum(event["cpu_s"] for event in usage),
            counters=counters,
        )

    def ask(self, command: Mapping[str, Any], wanted: str) -> list[dict[str, Any]]:
        """Send a command to all ranks; return the event `wanted` of each, by rank.

        Raises:
          RankError: a rank failed, or sent another event.
        """
        self._send(command)
        return self._await(wanted)

    def _wire_bytes(self) -> int:
        # The first host's, as its first rank sees it.
        try:
            text = Path(f"/proc/{self._processes[0].pid}/net/dev").read_text()
        except OSError:
            raise self._failure(0, "its process has ended") from None
        return wire_bytes(self._network.interface, text)

    def close(self) -> None:
        """End all ranks; may be repeated."""
        self._end_processes()
        self._folder.cleanup()

    def _end_processes(self) -> None:
        if self._processes:
            standalone.cluster_package().child_process.end_all(self._processes, _GRACE_S)
        for rank in range(len(self._processes)):
            self._log(rank).unlink()
        self._processes.clear()
        if self._ports is not None:
            self._ports.close()

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"{rank}.log"

    def _send(self, command: Mapping[str, Any]) -> None:
        line = json.dumps(command)
        for rank, process in enumerate(self._processes):
            try:
                process.send(line)
            except BrokenPipeError:
                raise self._failure(rank, "its process has ended") from None

    def _await(self, wanted: str) -> list[dict[str, Any]]:
        """Return the event `wanted` of each rank, by rank."""
        deadline = time.monotonic() + self._timeout_s
        events: dict[int, dict[str, Any]] = {}
        while len(events) < self._ranks:
            try:
                rank, event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                missing = sorted(set(range(self._ranks)) - events.keys())
                raise self._failure(
                    missing[0], f"no answer {wanted!r} of ranks {missing} in {self._timeout_s:g} s"
                ) from None
            if event["event"] != wanted:
                self._fail(rank, wanted, event)
            events[rank] = event
        return [events[rank] for rank in range(self._ranks)]

    def _fail(self, rank: int, wanted: str, event: Mapping[str, Any]) -> None:
        if event["event"] == "error" and event["kind"] == "PortTakenError":
            raise self._failure(rank, event["text"], _PortTaken)
        if event["event"] == "error":
            raise self._failure(rank, event["text"])
        raise self._failure(rank, f"the process sent {event['event']!r}, expected {wanted!r}")

    def _failure(self, rank: int, text: str, kind: type[RankError] = RankError) -> RankError:
        text_of_log = self._log(rank).read_text(errors="replace")
        lines = deque(text_of_log.splitlines(), maxlen=_LOG_TAIL_LINES)
        tail = "\n".join(lines) or "(it wrote nothing)"
        return kind(
            f"variant {self.variant.name}, rank {rank} of {self._ranks}: {text}\n"
            f"The end of its output:\n{tail}"
        )


def _read_events(
    rank: int,
    process: Any,
    events: queue.Queue[tuple[int, dict[str, Any]]],
) -> None:
    for line in process.lines():
        events.put((rank, json.loads(line)))
    status = process.wait()
    events.put((rank, {"event": "error", "kind": "Ended",
                       "text": f"the process ended with status {status}"}))  # fmt: skip
