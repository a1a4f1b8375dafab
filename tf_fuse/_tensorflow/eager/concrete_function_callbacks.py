# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add to `CONCRETE_FUNCTION_CALLBACKS`, which TensorFlow calls with each traced function.

At import, because an option that is set later applies to functions that were traced before, and
the context knows functions without their graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_IMPORT, Is, Member

_CALLBACKS = Member(
    "tensorflow.python.eager.polymorphic_function.transform",
    "CONCRETE_FUNCTION_CALLBACKS",
    Is("list"),
    "Graphs of functions are found by the functions' names; an item is appended, which changes "
    "nothing.",
    (feature_names.WEIGHT_UPDATES,),
    AT_IMPORT,
)
MEMBERS = (_CALLBACKS,)


def call_with_each(callback: Callable[[Any], None]) -> None:
    """Call a function with each `ConcreteFunction` that is made, once per process."""
    monkey_patch.append(_CALLBACKS, callback)
