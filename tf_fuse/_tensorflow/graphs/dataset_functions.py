# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `StructuredFunctionWrapper`, so that we see each function of a dataset.

At import, because TensorFlow has no list of the datasets that were made before an option is set,
and an update must not shard a variable that one of them reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_IMPORT, Is, Member, Takes

_CLASS = "tensorflow.python.data.ops.structured_function:StructuredFunctionWrapper"
_INIT = Member(
    _CLASS,
    "__init__",
    Takes(
        "self", "func", "transformation_name", "dataset", "input_classes", "input_shapes",
        "input_types", "input_structure", "add_to_graph", "use_legacy_function", "defun_kwargs",
    ),
    "The variables that a dataset reads are noted, since their values must stay whole; datasets "
    "that were made before the option was set count.",
    (feature_names.WEIGHT_UPDATES,),
    AT_IMPORT,
)  # fmt: skip
MEMBERS = (
    _INIT,
    Member(
        _CLASS, "function", Is("property"), "holds the captures", (feature_names.WEIGHT_UPDATES,)
    ),
)


def call_with_each(see: Callable[[Any], None]) -> None:
    """Call a function with each wrapper when it has been made, once per process."""
    monkey_patch.extend_init(_INIT, see)
