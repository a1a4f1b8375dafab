# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Save plans to files, and load those that fit a problem."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from tf_fuse.layout.optimize.allowed_strategies import MODES
from tf_fuse.layout.optimize.methods.tables import INFINITE, PER_SECOND
from tf_fuse.layout.optimize.plans.plan_figures import PlanRecord, choice_of
from tf_fuse.layout.optimize.problem import Problem, listed
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.v1 import layout_pb2

_VERSION = 1

_Kind = TypeVar("_Kind", bound=PlanRecord)


def to_proto(plan: PlanRecord) -> Any:
    """Return a plan as a `tf_fuse.v1.LayoutPlan`."""
    problem = plan.problem
    message = layout_pb2.LayoutPlan(
        version=_VERSION,
        mode=plan.mode,
        method=plan.method,
        bound_picoseconds=plan.bound_picoseconds,
        memory_bytes=plan.memory_bytes,
        memory_limit_bytes=problem.memory_limit_bytes,
    )
    for axis, size in problem.mesh.dims if problem.mesh else ():
        message.mesh.add(name=axis, size=size)
    for node, one in zip(problem.nodes, plan.operations, strict=True):
        message.operations.add(
            name=one.name,
            signature=node.signature,
            strategy=one.strategy,
            compute_picoseconds=round(one.compute_seconds * PER_SECOND),
            communication_picoseconds=round(one.communication_seconds * PER_SECOND),
            memory_bytes=one.memory_bytes,
            transient_bytes=one.transient_bytes,
            constrained=one.constrained,
        )
    for edge, seconds in zip(problem.edges, plan.relayouts, strict=True):
        message.tensors.add(
            source=edge.source,
            target=edge.target,
            tensor=edge.tensor,
            relayout_picoseconds=round(seconds * PER_SECOND),
        )
    return message


def save(plan: PlanRecord, path: str | os.PathLike[str]) -> None:
    """Write a plan; see `Plan.save`. A reader sees the old file or the new one, whole."""
    written(to_proto(plan), path)


def written(message: Any, path: str | os.PathLike[str]) -> None:
    """Write a message into a file, whole or not at all."""
    content = message.SerializeToString(deterministic=True)
    target = Path(path)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, target)


def load(path: str | os.PathLike[str], problem: Problem, kind: type[_Kind]) -> _Kind:
    """Read a plan of the given class; see `Plan.load`."""
    message = layout_pb2.LayoutPlan()
    try:
        message.ParseFromString(Path(path).read_bytes())
    except DecodeError as error:
        raise LayoutError(f"{os.fspath(path)} holds no plan: {error}") from None
    try:
        return from_proto(message, problem, kind)
    except LayoutError as error:
        raise LayoutError([f"{os.fspath(path)}: {one}" for one in error.problems]) from None


def from_proto(message: Any, problem: Problem, kind: type[_Kind]) -> _Kind:
    """Return the plan of a message, as an object of the given class.

    Raises:
      LayoutError: as of `Plan.load`; all that is found is named.
    """
    if message.version != _VERSION:
        raise LayoutError(
            f"the plan has version {message.version}, and this is for version {_VERSION}; search "
            "again"
        )
    raise_if(list(_misfits(message, problem)))
    choice = choice_of(problem, {one.name: one.strategy for one in message.operations})
    constrained = tuple(sorted(one.name for one in message.operations if one.constrained))
    plan = PlanRecord(problem, choice, message.mode, message.method, 0, constrained)
    if plan.picoseconds >= INFINITE:
        raise LayoutError(f"the plan cannot be: {', '.join(_impossible(plan))}; search again")
    limit = problem.memory_limit_bytes
    if limit is not None and plan.memory_bytes > limit:
        raise LayoutError(
            f"the plan needs {plan.memory_bytes:,} bytes per device, and memory_limit_bytes is "
            f"{limit:,}, {plan.memory_bytes - limit:,} less; raise the limit, or search again"
        )
    return kind(
        problem, choice, message.mode, message.method, _bound(message, plan), constrained,
    )  # fmt: skip


def _bound(message: Any, plan: PlanRecord) -> int:
    """Return the saved bound if all numbers of the plan and the limit are unchanged."""
    was = to_proto(plan)
    same = (
        list(was.operations) == list(message.operations)
        and list(was.tensors) == list(message.tensors)
        and was.HasField("memory_limit_bytes") == message.HasField("memory_limit_bytes")
        and was.memory_limit_bytes == message.memory_limit_bytes
    )
    return min(message.bound_picoseconds, plan.picoseconds) if same else 0


def _impossible(plan: PlanRecord) -> Iterator[str]:
    for edge, seconds in zip(plan.problem.edges, plan.relayouts, strict=True):
        if seconds == float("inf"):
            between = f"{plan.strategies[edge.source]!r} and {plan.strategies[edge.target]!r}"
            yield f"there is no relayout of {edge} between {between}"


def _misfits(message: Any, problem: Problem) -> Iterator[str]:
    """Return how the plan and the model differ."""
    theirs = ";".join(f"{axis.name}:{axis.size}" for axis in message.mesh)
    ours = str(problem.mesh or Mesh(()))
    if theirs != ours:
        yield f"the plan is for mesh {theirs!r}, and the model is laid over {ours!r}"
    if message.mode not in MODES:
        yield f"the plan's mode is {message.mode!r}, and modes are {', '.join(MODES)}"
    planned = {one.name: one for one in message.operations}
    gone = sorted(set(planned) - set(problem.indices))
    new = sorted(set(problem.indices) - set(planned))
    if gone:
        yield f"the plan has operations that the model has not: {listed(gone)}"
    if new:
        yield f"the model has operations that the plan has not: {listed(new)}"
    names = [one.name for one in message.operations]
    twice = len(planned) < len(names)
    for name in sorted({name for name in names if twice and names.count(name) > 1}):
        several = [one.strategy for one in message.operations if one.name == name]
        yield (
            f"the plan has operation {name!r} {len(several)} times, with strategies "
            f"{listed(several)}"
        )
    for node in problem.nodes:
        one = planned.get(node.name)
        if one is None:
            continue
        if one.signature != node.signature:
            yield (
                f"operation {node.name!r} is {one.signature!r} in the plan, and "
                f"{node.signature!r} in the model"
            )
        elif one.strategy not in node.names:
            yield (
                f"operation {node.name!r} has strategy {one.strategy!r} in the plan, and in the "
                f"model it has: {listed(node.names)}"
            )
    was = sorted((one.source, one.target, one.tensor) for one in message.tensors)
    now = sorted((edge.source, edge.target, edge.tensor) for edge in problem.edges)
    if was != now and not gone and not new:
        yield (
            f"the plan has {len(was)} tensors between operations, and the model has {len(now)}; "
            f"only in the plan: {_tensors(was, now)}; only in the model: {_tensors(now, was)}"
        )


def _tensors(mine: list[tuple[str, str, str]], others: list[tuple[str, str, str]]) -> str:
    left = list(mine)
    for one in others:
        if one in left:
            left.remove(one)
    return listed([f"{source} -> {target}" for source, target, _ in left])
