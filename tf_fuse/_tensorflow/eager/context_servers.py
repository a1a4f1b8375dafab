# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read from `Context` which servers this process is connected to. Replace nothing."""

from __future__ import annotations

import sys
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import Is, Member, Stored

_MODULE = "tensorflow.python.eager.context"
MEMBERS = (
    Member(
        f"{_MODULE}:Context",
        "_server_def",
        Stored(),
        "holds the tasks that this process is connected to",
        (feature_names.WEIGHT_UPDATES, feature_names.LOCAL_CLUSTER),
    ),
    Member(
        f"{_MODULE}:Context",
        "_collective_ops_server_def",
        Stored(),
        "holds the workers of a MultiWorkerMirroredStrategy",
        (feature_names.WEIGHT_UPDATES,),
    ),
    Member(
        _MODULE,
        "_context",
        Is("Context", "NoneType"),
        "to find the context without making one",
        (feature_names.LOCAL_CLUSTER,),
    ),
)


def server_def(context: Any) -> Any:
    """Return the ServerDef of the tasks that a process is connected to; None if there are none."""
    return context._server_def


def collective_server_def(context: Any) -> Any:
    """Return the ServerDef of the workers that run collectives together; None for none."""
    return context._collective_ops_server_def


def present_context() -> Any:
    """Return the eager context; None if TensorFlow has not made one. Does not import TensorFlow."""
    return getattr(sys.modules.get(_MODULE), "_context", None)
