# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the fused receives that wait, in this process or in a connected cluster."""

from __future__ import annotations

from typing import Any

from tf_fuse.monitoring import tasks


def waiting() -> list[dict[str, Any]]:
    """Return the fused receives of this process that wait at this moment, the longest first.

    At most 1000, and fewer where their names are many; `tf_fuse.metrics()` counts all
    (`pending_receives`, `pending_requests`).

    Returns:
      A dict for each, which can be written as JSON:

      * `task`, `peer`: the task that reports ("/job:ps/replica:0/task:0"), and the other one;
      * `sending`: True if `peer` waits for tensors of `task`, False if `task` waits for those of
        `peer`; a receive stands in the lists of both;
      * `step_id`;
      * `waited_s`: seconds since the receive began, or its request arrived;
      * `tensors`: how many it has in total;
      * `missing`: how many have not arrived, and `tensor_names`, their names (the first 100). The
        receiving task does not know which tensors of one request are missing: there `missing` is
        None, and the names are those of all;
      * `step_not_begun`: the sending task has not begun the step;
      * `one_by_one`: the tensors are received singly: they are large, or the sender lacks the
        plugin.
    """
    from tf_fuse.v1 import fuse_recv_pb2

    return _as_dicts(tasks.ask_this_process(fuse_recv_pb2.QUESTION_WAITING))


def cluster_waiting(timeout_s: float = 10.0) -> dict[str, list[dict[str, Any]] | None]:
    """Return the fused receives that wait in every task of the connected cluster.

    May be called while another thread waits for a step. Tasks are asked by an RPC that does not
    need their executors.

    Args:
      timeout_s: seconds to wait for a task's answer.

    Returns:
      The list of each task, as from `waiting`; None for a task that runs without the plugin or does
      not answer.
    """
    from tf_fuse.v1 import fuse_recv_pb2

    answers = tasks.ask_every_task(fuse_recv_pb2.QUESTION_WAITING, timeout_s)
    return {
        task: None if isinstance(answer, tasks.TaskError) else _as_dicts(answer)
        for task, answer in answers.items()
    }


def _as_dicts(serialized: bytes) -> list[dict[str, Any]]:
    """Parse a serialized `tf_fuse.v1.WaitingReceives`."""
    from tf_fuse.v1 import fuse_recv_pb2

    return [
        {
            "task": one.task,
            "peer": one.peer,
            "sending": one.sending,
            "step_id": one.step_id,
            "waited_s": one.waited_micros / 1e6,
            "tensors": one.tensors,
            "missing": one.missing if one.missing_known else None,
            "tensor_names": list(one.tensor_names),
            "step_not_begun": one.step_not_begun,
            "one_by_one": one.one_by_one,
        }
        for one in fuse_recv_pb2.WaitingReceives.FromString(serialized).receives
    ]
