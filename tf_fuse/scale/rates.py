# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What things cost on the machine that `tf-fuse calibrate` ran on, and the file of it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from tf_fuse.scale.collective_rates import CollectiveRates, checked_cost
from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.steps.step_graph import WORKER, StepGraph, Transfer, Work

_VERSION = 3
# A model's operations take so many times what the rates say at most, and such a part at least.
_MOST_SCALE = 4.0
# What other figures are divided by.
_ABOVE_ZERO = ("step_threads", "data_threads", "core_share")


@dataclasses.dataclass(frozen=True)
class Rates:
    """CPU seconds of each thing that a step does, and how tasks share a host.

    Attributes:
      function_s: to call a function in one process.
      operation_s: for an operation, beside what it computes.
      variable_operation_s: for one that reads or changes a variable.
      byte_s: for a byte that an operation reads or writes.
      flop_s: for a floating-point operation of a product.
      worker_call_s: of the worker, for a step.
      server_request_s: of the worker, for each server that a step involves.
      server_call_s: of a server, for its part of a step.
      worker_handle_s: of the worker, for each variable that the call of the step names.
      server_handle_s: of a server, for each of its variables.
      remote_operation_s: for an operation in a step of several tasks, beside `operation_s`.
      member_s: for an operation inside a group.
      stream_receive_s: of the receiver, for the messages from one task at one depth.
      stream_send_s: of their sender.
      receive_s: of the receiver, for an RPC of one tensor.
      send_s: of its sender.
      burst_receive_s: of the receiver, times the square root of how many such RPCs come from one
        task at one depth: those that are under way together share wake-ups.
      burst_send_s: of their sender.
      neighbour_s: of a server, for such an RPC and each other server of its host: the more of them
        a step involves, the fewer of its messages wait when one of them gets a core.
      frame_receive_s: of the receiver, for a fused RPC.
      frame_send_s: of its sender.
      frame_tensor_receive_s: of the receiver, for a tensor in it.
      frame_tensor_send_s: of its sender.
      receive_byte_s: of the receiver, for a byte in an RPC of one tensor.
      send_byte_s: of its sender.
      frame_receive_byte_s: of the receiver, for a byte in a fused RPC.
      frame_send_byte_s: of its sender.
      large_receive_byte_s: of the receiver, for a byte in a frame that takes a data channel.
      large_send_byte_s: of its sender.
      dispatch_s: of the coordinator, for a step; one step at a time.
      dispatch_handle_s: of the coordinator, for each variable that the step names.
      watch_share: of a core, what the coordinator takes all the time.
      path_share: of the seconds of calls (of functions, servers and the coordinator), what the step
        waits for; the rest is done beside it.
      hop_s: from the end of work to the beginning of the work that waits for it in another task.
      step_threads: cores that the operations of one segment use at once.
      data_threads: cores that what they compute uses at once.
      contention: by how much the CPU seconds of a worker grow where another worker's step always
        runs between two of its own, so that the caches lack its data; with W workers on a host,
        1 - 1 / W of the time.
      core_share: of the cores, what processes can use when all are busy.
    """

    function_s: float
    operation_s: float
    variable_operation_s: float
    byte_s: float
    flop_s: float
    worker_call_s: float
    server_request_s: float
    server_call_s: float
    worker_handle_s: float
    server_handle_s: float
    remote_operation_s: float
    member_s: float
    stream_receive_s: float
    stream_send_s: float
    receive_s: float
    send_s: float
    burst_receive_s: float
    burst_send_s: float
    neighbour_s: float
    frame_receive_s: float
    frame_send_s: float
    frame_tensor_receive_s: float
    frame_tensor_send_s: float
    receive_byte_s: float
    send_byte_s: float
    frame_receive_byte_s: float
    frame_send_byte_s: float
    large_receive_byte_s: float
    large_send_byte_s: float
    dispatch_s: float
    dispatch_handle_s: float
    watch_share: float
    path_share: float
    hop_s: float
    step_threads: float
    data_threads: float
    contention: float
    core_share: float

    def worker_s(self, graph: StepGraph) -> float:
        """Return the CPU seconds that a worker takes for the call of a step and its requests."""
        return (
            self.worker_call_s
            + self.server_request_s * (len(graph.tasks()) - 1)
            + self.worker_handle_s * graph.handles_of(WORKER)
        )

    def server_s(self, graph: StepGraph, server: str) -> float:
        """Return the CPU seconds that a server takes for the call of its part of a step."""
        return self.server_call_s + self.server_handle_s * graph.handles_of(server)

    def coordinator_s(self, graph: StepGraph) -> float:
        """Return the CPU seconds that the coordinator takes for a step."""
        return self.dispatch_s + self.dispatch_handle_s * graph.handles_of(WORKER)

    def slowdown(self, workers: int, tasks: int, cores: float) -> float:
        """Return by what the CPU seconds of a worker grow.

        Args:
          workers: on its host.
          tasks: on its host, in all.
          cores: of the host.
        """
        return 1.0 + self.contention * (1.0 - 1.0 / workers) if tasks > cores else 1.0

    def compute_s(self, work: Work) -> float:
        """Return what operations take in one process, all of them by themselves."""
        return self._plain_s(work) + self._variables_s(work)

    def _plain_s(self, work: Work) -> float:
        data = self.byte_s * work.bytes + self.flop_s * work.flops
        return self.operation_s * work.operations + data

    def _variables_s(self, work: Work) -> float:
        own = self.variable_operation_s * work.variable_operations
        return own + self.byte_s * work.variable_bytes

    def compute_scale(self, stock: StepGraph, cpu_s: float) -> float:
        """Return what a model's operations take, over what these rates say of them.

        Those that use variables are the same few kinds in all models, so they take what the rates
        say.

        Args:
          stock: its step, unfused.
          cpu_s: that the step takes in one process.
        """
        work = stock.work_of(stock.tasks())
        expected = self._plain_s(work)
        if expected <= 0:
            return 1.0
        scale = (cpu_s - self.function_s - self._variables_s(work)) / expected
        return min(max(scale, 1 / _MOST_SCALE), _MOST_SCALE)

    def segment_s(self, work: Work, scale: float = 1.0) -> float:
        """Return the CPU seconds of a segment.

        Args:
          work: its operations.
          scale: what the model's operations take, over what `compute_s` says.
        """
        return sum(self.segment_parts_s(work, scale))

    def segment_parts_s(self, work: Work, scale: float = 1.0) -> tuple[float, float]:
        """Return what the operations of a segment take, and what they compute.

        Args:
          work: its operations.
          scale: as of `segment_s`.
        """
        operations = scale * self.operation_s * work.operations
        operations += self.variable_operation_s * work.variable_operations
        operations += self.remote_operation_s * (work.operations + work.variable_operations)
        data = scale * (self.byte_s * work.bytes + self.flop_s * work.flops)
        data += self.byte_s * work.variable_bytes
        return operations + self.member_s * work.members, data

    def threads(self, operations_s: float, data_s: float) -> float:
        """Return the cores that a segment uses on average, of both parts of its CPU seconds."""
        seconds = operations_s / self.step_threads + data_s / self.data_threads
        return (operations_s + data_s) / seconds if seconds else 1.0

    def sender_s(self, transfer: Transfer, neighbours: int = 0) -> float:
        """Return the CPU seconds that the sending task takes for a transfer.

        Args:
          transfer: what is sent.
          neighbours: of a server that sends, the other servers of its host.
        """
        return (
            self.stream_send_s
            + (self.send_s + self.neighbour_s * neighbours) * transfer.calls
            + self.burst_send_s * math.sqrt(transfer.calls)
            + self.frame_send_s * transfer.fused_calls
            + self.frame_tensor_send_s * transfer.fused_tensors
            + self.send_byte_s * (transfer.bytes - transfer.fused_bytes)
            + self.frame_send_byte_s * (transfer.fused_bytes - transfer.large_bytes)
            + self.large_send_byte_s * transfer.large_bytes
        )

    def receiver_s(self, transfer: Transfer, neighbours: int = 0) -> float:
        """Return the CPU seconds that the receiving task takes for a transfer.

        Args:
          transfer: what is received.
          neighbours: of a server that receives, the other servers of its host.
        """
        return (
            self.stream_receive_s
            + (self.receive_s + self.neighbour_s * neighbours) * transfer.calls
            + self.burst_receive_s * math.sqrt(transfer.calls)
            + self.frame_receive_s * transfer.fused_calls
            + self.frame_tensor_receive_s * transfer.fused_tensors
            + self.receive_byte_s * (transfer.bytes - transfer.fused_bytes)
            + self.frame_receive_byte_s * (transfer.fused_bytes - transfer.large_bytes)
            + self.large_receive_byte_s * transfer.large_bytes
        )


def save_rates(
    rates: Rates,
    path: str | os.PathLike[str],
    machine: dict[str, Any],
    collectives: CollectiveRates | None = None,
) -> None:
    """Write rates and the machine that they are of. A reader sees the old file or the new one."""
    content = {
        "version": _VERSION,
        "machine": machine,
        "rates": dataclasses.asdict(rates),
        "collectives": collectives.as_dict() if collectives else None,
    }
    temporary = Path(f"{path}.{os.getpid()}")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def load_rates(path: str | os.PathLike[str]) -> Rates:
    """Read rates that `save_rates` wrote.

    Raises:
      ScaleError: the file does not exist, or holds no rates.
    """
    given = _content(path).get("rates")
    names = [field.name for field in dataclasses.fields(Rates)]
    found = given if isinstance(given, dict) else {}
    if missing := [name for name in names if name not in found]:
        raise ScaleError(
            f"{path}: {', '.join(missing)} is missing; run: tf-fuse calibrate --out {path}"
        )
    return Rates(
        **{name: checked_cost(found[name], name, path, name in _ABOVE_ZERO) for name in names}
    )


def load_collectives(path: str | os.PathLike[str]) -> CollectiveRates:
    """Read what collectives cost from the same file.

    Raises:
      ScaleError: the file does not exist, or does not say so.
    """
    return CollectiveRates.from_dict(_content(path).get("collectives"), str(path))


def _content(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ScaleError(
            f"{path}, with the costs of this machine, does not exist; run: tf-fuse calibrate --out "
            f"{path}"
        ) from None
    except (OSError, ValueError) as error:
        raise ScaleError(
            f"{path} holds no costs: {error}; run: tf-fuse calibrate --out {path}"
        ) from None
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        version = content.get("version") if isinstance(content, dict) else None
        raise ScaleError(
            f"{path}: the costs have version {version}, and this is for version {_VERSION}; "
            f"run: tf-fuse calibrate --out {path}"
        )
    return content
