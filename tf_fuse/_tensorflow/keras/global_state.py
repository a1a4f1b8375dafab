# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Restore what Keras 3 and tf_keras keep for a process: numbers in names, and seeds."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names as names
from tf_fuse._tensorflow.members import ON_OBJECTS, Is, Member

_TRACKER = "keras.src.backend.common.global_state"
_BACKEND = "tf_keras.src.backend"
_WHY = "It is put back after a program was recorded in a graph."
_FEATURES = (names.PLACEMENT,)
_TF_KERAS = "tf_keras 2.21"
MEMBERS = (
    Member(_TRACKER, "GLOBAL_STATE_TRACKER", Is("_local"), _WHY, _FEATURES, ON_OBJECTS, "Keras 3"),
    Member(
        _BACKEND,
        "PER_GRAPH_OBJECT_NAME_UIDS",
        Is("WeakKeyDictionary"),
        _WHY,
        _FEATURES,
        ON_OBJECTS,
        _TF_KERAS,
    ),
    Member(_BACKEND, "OBSERVED_NAMES", Is("set"), _WHY, _FEATURES, ON_OBJECTS, _TF_KERAS),
)


@contextlib.contextmanager
def keep_keras() -> Iterator[None]:
    """Put back what Keras 3 keeps for each thread: numbers of names, and a generator of seeds."""
    module = sys.modules.get(_TRACKER)
    tracker = getattr(module, "GLOBAL_STATE_TRACKER", None)
    if tracker is None:
        yield
        return
    before = dict(vars(tracker))
    for name, value in before.items():
        if hasattr(value, "copy") and name == "object_name_uids":
            setattr(tracker, name, value.copy())
    # (Its state is a variable that is there already, which a graph cannot use.)
    vars(tracker).pop("global_seed_generator", None)
    try:
        yield
    finally:
        vars(tracker).clear()
        vars(tracker).update(before)


@contextlib.contextmanager
def keep_tf_keras(graph: Any) -> Iterator[None]:
    """Put back what tf_keras keeps; the numbers in a new graph go on from those outside.

    Args:
      graph: the new one.
    """
    from tensorflow.python.framework import ops

    module = sys.modules.get(_BACKEND)
    numbers = getattr(module, "PER_GRAPH_OBJECT_NAME_UIDS", None)
    if module is None or numbers is None:
        yield
        return
    here: dict[str, int] = defaultdict(int)
    for outside in (module.get_graph(), ops.get_default_graph()):
        for key, number in (numbers.get(outside) or {}).items():
            here[key] = max(here[key], number)
    numbers[graph] = here
    names = set(module.OBSERVED_NAMES)
    try:
        yield
    finally:
        module.OBSERVED_NAMES.clear()
        module.OBSERVED_NAMES.update(names)
