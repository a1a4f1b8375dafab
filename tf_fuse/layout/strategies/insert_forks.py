# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Insert forks: an `Identity` after each tensor with several readers, so they share a relayout.

The cost of a graph is a sum over its edges, and each edge has its own relayouts. For a tensor that
is partial after its maker and whole at three readers, the sum would charge three all-reduces, and
three more for the partial gradients. With an `Identity` between them, whose layout is a choice as
well, the maker's edge to it has the only all-reduce, in each direction.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from tf_fuse.layout.types.control_flow import ENTER
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation, Tensor, check_graph

SUFFIX = "/fork"


def with_forks(operations: Sequence[Operation]) -> list[Operation]:
    """Put an `Identity` after each tensor that several inputs read.

    Args:
      operations: in an order in which they can run.

    Returns:
      The same with forks, named as the tensor with "/fork" appended, and readers that read them.

    Raises:
      LayoutError: the operations are in no order in which they can run, or a name is taken.
    """
    check_graph(operations)
    count = collections.Counter(tensor.name for one in operations for tensor in one.inputs)
    taken = {one.name for one in operations} | {
        tensor.name for one in operations for tensor in (*one.inputs, *one.outputs)
    }
    forks: dict[str, Tensor] = {}
    found: list[Operation] = []

    def fork(tensor: Tensor) -> None:
        name = tensor.name + SUFFIX
        if name in taken:
            raise LayoutError(f"the name {name!r} is taken; it is for a copy of {tensor.name!r}")
        # Its maker's tensor is the parameter.
        forks[tensor.name] = dataclasses.replace(tensor, name=name, parameter=False)
        found.append(Operation(name, "Identity", [tensor], [forks[tensor.name]]))

    made = {tensor.name for one in operations for tensor in one.outputs}
    for one in operations:
        for tensor in one.inputs:
            # From outside: no operation makes it.
            if count[tensor.name] > 1 and not (tensor.name in made or tensor.name in forks):
                fork(tensor)
        inputs = [forks.get(tensor.name, tensor) for tensor in one.inputs]
        found.append(Operation(one.name, one.kind, inputs, one.outputs, one.attributes))
        for tensor in one.outputs:
            # The body of a loop reads what changes in the loop itself.
            if count[tensor.name] > 1 and one.kind != ENTER:
                fork(tensor)
    return found
