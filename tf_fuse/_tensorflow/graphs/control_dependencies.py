# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `auto_control_deps`, so that a function does not order some stateful operations.

At import, because from then on a program can have these operations without calling a function of
this package, as by `tf.graph_util.import_graph_def`. It changes nothing for programs without them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_IMPORT, Is, Member

_ASYNC = Member(
    "tensorflow.python.framework.auto_control_deps",
    "ASYNC_STATEFUL_OPS",
    Is("frozenset"),
    "Our collectives must not run one after the other: with several replicas in one function, the "
    "first one would wait for members that come after it.",
    (feature_names.COLLECTIVES,),
    AT_IMPORT,
)
MEMBERS = (_ASYNC,)


def run_side_by_side(ours: Iterable[str]) -> None:
    """Keep functions from ordering operations of some types.

    `tf.function` puts stateful operations in an order. TensorFlow's list of the collectives that
    are exempt has only its own ones.

    Args:
      ours: the types; no program of stock TensorFlow has them.
    """
    from tensorflow.python.framework import auto_control_deps

    both = frozenset(auto_control_deps.ASYNC_STATEFUL_OPS) | frozenset(ours)
    monkey_patch.replace(_ASYNC, both)
