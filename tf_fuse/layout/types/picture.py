# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show which device holds which slice, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_fuse._console import open_console
from tf_fuse.layout.types.tensor_layout import TensorLayout

# How many devices a cell names; of more it gives the number.
_NAMED_DEVICES = 16


def picture(layout: TensorLayout, item_bytes: int = 4) -> Any:
    """Return the tensor's slices, where they are in it, with the devices that hold them.

    One dimension runs to the right and one down; where more than two are split, the others' slices
    stand in front of each row. A partial tensor's devices are marked with their term: 3:0 is
    device 3, which holds term 0.

    Args:
      layout: what to show.
      item_bytes: of one element.

    Returns:
      For `rich.print`.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    cut = [i for i, count in enumerate(layout.slices) if count > 1]
    across = cut[-1] if cut else None
    title = (
        f"{layout}\neach device: {list(layout.slice_shape)}, "
        f"{layout.bytes_per_device(item_bytes):,} bytes"
    )
    table = Table(box=box.SQUARE, show_lines=True)
    rows: dict[tuple[tuple[int, int], ...], list[str]] = {}
    columns: dict[tuple[int, int] | None, None] = {}
    for key, devices in layout.holders().items():
        columns[None if across is None else key[across]] = None
        row = tuple(key[i] for i in cut if i != across)
        rows.setdefault(row, []).append(_devices(layout, devices))
    down = [i for i in cut if i != across]
    if down:
        table.add_column(", ".join(f"dimension {i}" for i in down))
    for one in columns:
        table.add_column("" if one is None else f"dimension {across}: {_range(one)}")
    for row, cells in rows.items():
        table.add_row(*([", ".join(map(_range, row))] if down else []), *cells)
    return Group(Text(title), table)


def show(what: Any, item_bytes: int = 4) -> None:
    """Print the picture of a layout, or the table of a plan.

    To a file or a pipe lines are as long as they need to be, where `rich.print` breaks names to fit
    80 columns.

    Args:
      what: a `TensorLayout`, what has a method `table`, or one more thing for `rich.print`, as
        `plan.why()`.
      item_bytes: of one element of a tensor of that layout.
    """
    if isinstance(what, TensorLayout):
        what = picture(what, item_bytes)
    elif hasattr(what, "table"):
        what = what.table()
    open_console().print(what)


def _range(one: tuple[int, int]) -> str:
    return f"{one[0]}..{one[1] - 1}"


def _devices(layout: TensorLayout, devices: Sequence[int]) -> str:
    names = [
        f"{device}:{','.join(map(str, layout.term_of(device)))}" if layout.partial else str(device)
        for device in devices[:_NAMED_DEVICES]
    ]
    more = f" and {len(devices) - len(names)} more" if len(devices) > len(names) else ""
    return " ".join(names) + more
