# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute how many bytes a device holds while a graph runs, operation by operation.

Operations run in a given order, and for training their gradients in the opposite order after it. At
each moment a device holds

* every parameter, all the time;
* a tensor from where it is made to its last reader; for training, to the gradient of the last
  operation that keeps it;
* a copy of it for the readers that have it in another layout;
* gradients: of a tensor from its last reader's to its maker's, of a parameter to the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.strategies.strategy import Strategy
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation, Tensor, check_graph
from tf_fuse.layout.types.tensor_layout import TensorLayout


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of a device.

    Attributes:
      peak_bytes: the most at one moment.
      at: the operation that runs then.
      backward: whether it is its gradient.
      parameter_bytes: of parameters, in `peak_bytes`.
      held: bytes at each moment.
      largest: (bytes, what) of what is held at the peak, the largest first.
    """

    peak_bytes: int
    at: str
    backward: bool
    parameter_bytes: int
    held: tuple[int, ...]
    largest: tuple[tuple[int, str], ...]


def memory(
    operations: Sequence[Operation], chosen: Sequence[Strategy], training: bool = False
) -> Memory:
    """Return how many bytes each device holds at each moment.

    Args:
      operations: in the order in which they run.
      chosen: a strategy for each.
      training: whether their gradients run, too. A graph that has these as operations needs none.

    Raises:
      LayoutError: the operations are in no order in which they can run, or there is not a strategy
        for each.
    """
    check_graph(operations)
    if len(operations) != len(chosen):
        raise LayoutError(
            f"there are {len(operations)} operations and {len(chosen)} strategies; give one for "
            "each"
        )
    buffers = _Buffers(operations, chosen, training)
    moments = 2 * len(operations) if training else len(operations)
    change = [0] * (moments + 1)
    for begin, end, size in buffers.found.values():
        change[begin] += size
        change[end + 1] -= size
    held = []
    now = 0
    for one in change[:moments]:
        now += one
        held.append(now)
    if not held:
        return Memory(0, "", False, 0, (), ())
    peak = max(range(moments), key=held.__getitem__)
    backward = peak >= len(operations)
    number = moments - 1 - peak if backward else peak
    present = [
        (size, what) for what, (begin, end, size) in buffers.found.items() if begin <= peak <= end
    ]
    return Memory(
        held[peak],
        operations[number].name,
        backward,
        sum(size for what, (_, _, size) in buffers.found.items() if what in buffers.parameters),
        tuple(held),
        tuple(sorted(present, key=lambda one: (-one[0], one[1]))),
    )


class _Buffers:
    """Buffers, each with the moments between which a device holds it."""

    def __init__(self, operations: Sequence[Operation], chosen: Sequence[Strategy], training: bool):
        self.found: dict[str, tuple[int, int, int]] = {}
        self.parameters: set[str] = set()
        self._end = (2 if training else 1) * len(operations) - 1
        # The layout in which each tensor is made, and the buffer that it lies in.
        self._made: dict[str, TensorLayout] = {}
        self._place: dict[str, str] = {}
        for now, (one, strategy) in enumerate(zip(operations, chosen, strict=True)):
            back = self._end - now if training else None
            self._operation(now, back, one, strategy)
        if not training:
            return
        # In the order in which they run: the readers' gradients before the makers'.
        for now in reversed(range(len(operations))):
            self._gradients(self._end - now, operations[now], chosen[now])

    def _operation(self, now: int, back: int | None, one: Operation, strategy: Strategy) -> None:
        rule = rule_of(one)
        runs_back = back is not None and any(strategy.input_gradients)
        for i, (tensor, layout) in enumerate(zip(one.inputs, strategy.inputs, strict=True)):
            saved = runs_back and i in rule.saved_inputs
            self._read(tensor, layout, now, back if saved and back is not None else now)
        for o, (tensor, layout) in enumerate(zip(one.outputs, strategy.outputs, strict=True)):
            root = next((one.inputs[i] for output, i in rule.aliases if output == o), None)
            self._make(tensor, layout, now, root, strategy, one)
            if runs_back and back is not None and o in rule.saved_outputs:
                self._extend(self._place[tensor.name], now, back, 0)

    def _make(
        self,
        tensor: Tensor,
        layout: TensorLayout,
        now: int,
        root: Tensor | None,
        strategy: Strategy,
        one: Operation,
    ) -> None:
        self._made[tensor.name] = layout
        if root is not None:
            self._place[tensor.name] = self._copy(root, strategy.inputs[one.inputs.index(root)])
            return
        self._place[tensor.name] = tensor.name
        size = layout.bytes_per_device(tensor.item_bytes)
        if tensor.parameter:
            self.parameters.add(tensor.name)
            self._extend(tensor.name, 0, self._end, size)
        else:
            self._extend(tensor.name, now, now, size)

    def _read(self, tensor: Tensor, layout: TensorLayout, now: int, until: int) -> None:
        if tensor.name not in self._made:
            # A tensor from outside exists from the beginning.
            self._made[tensor.name] = layout
            self._place[tensor.name] = tensor.name
            if tensor.parameter:
                self.parameters.add(tensor.name)
            end = self._end if tensor.parameter else now
            self._extend(tensor.name, 0, end, layout.bytes_per_device(tensor.item_bytes))
        # The copy is made from the tensor, which must exist then.
        self._extend(self._place[tensor.name], now, now, 0)
        size = layout.bytes_per_device(tensor.item_bytes)
        self._extend(self._copy(tensor, layout), now, until, size)

    def _copy(self, tensor: Tensor, layout: TensorLayout) -> str:
        """Return the buffer that holds a tensor in a layout."""
        if layout == self._made[tensor.name]:
            return self._place[tensor.name]
        return f"{tensor.name} as {layout}"

    def _gradients(self, back: int, one: Operation, strategy: Strategy) -> None:
        if not any(strategy.input_gradients):
            return
        for tensor, gradient in zip(one.inputs, strategy.input_gradients, strict=True):
            if gradient is not None:
                size = gradient.bytes_per_device(tensor.item_bytes)
                until = self._end if tensor.parameter else back
                self._extend(f"gradient of {tensor.name}", back, until, size)
        for tensor, gradient in zip(one.outputs, strategy.output_gradients, strict=True):
            name = f"gradient of {tensor.name}"
            if gradient is not None and name in self.found:
                size = gradient.bytes_per_device(tensor.item_bytes)
                self._extend(name, back, back, size)

    def _extend(self, name: str, begin: int, end: int, size: int) -> None:
        first, last, most = self.found.get(name, (begin, end, size))
        self.found[name] = min(first, begin), max(last, end), max(most, size)
