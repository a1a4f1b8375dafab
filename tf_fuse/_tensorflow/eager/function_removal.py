# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `Context.remove_function`, so that it leaves functions of ended tasks alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.eager import function_calls
from tf_fuse._tensorflow.eager.context_servers import present_context, server_def
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Takes

_REMOVE = Member(
    "tensorflow.python.eager.context:Context",
    "remove_function",
    Takes("self", "name"),
    "Functions are not removed from tasks of a `LocalCluster` that have ended.",
    (feature_names.LOCAL_CLUSTER,),
    ON_OBJECTS,
)
MEMBERS = (_REMOVE,)


def keep_functions_of(addresses: Collection[str]) -> None:
    """Keep functions that are there now while this process is connected to tasks that end.

    Args:
      addresses: of the tasks.
    """
    context = present_context()
    if context is None or server_def(context) is None:
        return
    jobs = server_def(context).cluster.job
    if not {address for job in jobs for address in job.tasks.values()} & set(addresses):
        return
    if not hasattr(context, "_tf_fuse_ended"):
        stock, dropped = context.remove_function, []

        def remove_function(name: Any) -> None:
            is_ended = server_def(context) is context._tf_fuse_ended
            key = name if isinstance(name, bytes) else name.encode()
            if is_ended and key in context._tf_fuse_sent:
                dropped.append(name)
                function_calls.forget(context, key)
            else:
                stock(name)
            while dropped and not is_ended:
                stock(dropped.pop())

        monkey_patch.replace(_REMOVE, remove_function, context)
    context._tf_fuse_ended = server_def(context)
    names_now = context.list_function_names()
    context._tf_fuse_sent = {n if isinstance(n, bytes) else n.encode() for n in names_now}
