# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the backends of fused updates: our own operations, or functions that XLA compiles."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.graphs.internal_api import is_built_with_xla
from tf_fuse.fuse_update.analysis.devices import has_other_tasks
from tf_fuse.fuse_update.encode.encoder_interface import Encoder


@dataclass(frozen=True)
class Backend:
    """What runs a fused update.

    Attributes:
      name: used in the names of rewritten functions and in log messages.
      encoder: encodes clusters as operations of this backend.
      problem: returns why a context cannot run them, or "".
      has_servers: whether they can run on other tasks.
      may_differ: returns whether last bits may differ from TensorFlow's.
      variant: returns the options of a call that a rewritten function depends on.
    """

    name: str
    encoder: Encoder
    problem: Callable[[Any], str]
    has_servers: bool = False
    may_differ: Callable[[], bool] = lambda: False
    variant: Callable[[], Hashable] = lambda: None


def no_xla(context: Any) -> str:
    """Return why XLA cannot compile the updates of a context, or ""."""
    if not is_built_with_xla():
        return "this TensorFlow is built without XLA"
    if has_other_tasks(context):
        return "the variables may be on other tasks than the one that runs the program"
    return ""
