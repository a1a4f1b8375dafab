# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make TensorFlow's own update operations lock their variables.

`ResourceApplyAdam` and others change a weight and its slots in one operation already. Optimizers
leave `use_locking` off, so a concurrent reader may see half an update. Values stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tf_fuse.function_graph.view import GraphView, data_inputs

_APPLIES = re.compile(r"Resource(Sparse)?Apply\w+")
_KEY = "use_locking"


def lock_applies(
    function: Any, view: GraphView, can_fuse_on: Callable[[str, str | None], bool]
) -> int:
    """Set `use_locking`.

    Args:
      function: a `FunctionDef`, changed in place.
      view: of a function that contains the function's update operations.
      can_fuse_on: decides where this applies, by device and variable.

    Returns:
      How many operations were changed.
    """
    changed = 0
    for node in function.node_def:
        # (Looking a missing key up would add it.)
        if not _APPLIES.fullmatch(node.op) or (_KEY in node.attr and node.attr[_KEY].b):
            continue
        has_locks = any(attr.name == _KEY for attr in view.op_def(node.op).attr)
        if has_locks and can_fuse_on(node.device, view.resource(data_inputs(node)[0])):
            node.attr[_KEY].b = True
            changed += 1
    return changed
