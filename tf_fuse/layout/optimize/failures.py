# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Build the errors of a search that finds no plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tf_fuse.layout.optimize.errors import MemoryLimitError, NoChoiceError, SearchLimitError
from tf_fuse.layout.optimize.methods import prune
from tf_fuse.layout.optimize.methods.tables import Tables
from tf_fuse.layout.optimize.solution import Limits


def out_of_memory(
    tables: Tables, names: Sequence[str], least: int, choice: tuple[int, ...], exact: bool
) -> MemoryLimitError:
    """Return the error for a problem whose choices all need more memory than the limit.

    Args:
      tables: the problem, with a limit.
      names: of the operations.
      least: bytes that every choice needs.
      choice: the choice whose largest operations the error names.
      exact: whether some choice needs only `least` bytes.
    """
    assert tables.limit is not None
    at = int(np.argmax(tables.bytes_of(choice)))
    memory = zip(tables.memory_at(at), choice, strict=True)
    largest = sorted((-int(mine[s]), names[i]) for i, (mine, s) in enumerate(memory))[:3]
    most = ", ".join(f"{name} {-held:,}" for held, name in largest)
    return MemoryLimitError(least, tables.limit, exact, f" (the most by {most})")


def no_choice(tables: Tables, names: Sequence[str]) -> NoChoiceError:
    """Return the error for a problem in which no strategies go together, whatever the limit."""
    found = prune.impossible(tables)
    where = " and ".join(repr(names[i]) for i in found)
    return NoChoiceError(
        "no choice of strategies can be: "
        + (f"no strategy of {where} goes with the others'" if found else "edges exclude all")
        + "; allow more relayout steps, offer more strategies, or constrain fewer operations"
    )


def limits_reached(tables: Tables, limits: Limits) -> SearchLimitError:
    """Return the error for a search that reached its limits before it found a choice that fits."""
    limit = "" if tables.limit is None else f" that fits into {tables.limit} bytes"
    names = ["max_program_nodes", "max_program_columns"]
    names += ["time_limit_seconds"] if limits.time_limit_seconds else []
    names += ["the limit of memory"] if limit else []
    return SearchLimitError(
        f"no plan{limit} was found within {limits}; raise {', '.join(names[:-1])} or {names[-1]}"
    )
