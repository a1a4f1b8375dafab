# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Has TensorFlow's own operations of whole updates lock their variables.

`ResourceApplyAdam` and others change a weight and its slots in one operation already, and without
`use_locking`, which optimizers leave off, others may be in the middle of it. Values are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tf_fuse.shard_update.graph_view import GraphView, data_inputs

_APPLIES = re.compile(r"Resource(Sparse)?Apply\w+")
_KEY = "use_locking"


def lock_applies(function: Any, view: GraphView, is_here: Callable[[str, str | None], bool]) -> int:
    """Switches locks on.

    Args:
      function: a `FunctionDef`, which is changed.
      view: of a function that has all of its nodes of such operations.
      is_here: whether a node on a device and a variable are where this applies.

    Returns:
      How many operations have them now that did not.
    """
    changed = 0
    for node in function.node_def:
        # (Looking for a key that is not there would add it.)
        if not _APPLIES.fullmatch(node.op) or (_KEY in node.attr and node.attr[_KEY].b):
            continue
        has_locks = any(attr.name == _KEY for attr in view.op_def(node.op).attr)
        if has_locks and is_here(node.device, view.resource(data_inputs(node)[0])):
            node.attr[_KEY].b = True
            changed += 1
    return changed
