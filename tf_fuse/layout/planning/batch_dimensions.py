# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the batch dimension of each tensor that is fed, and check that a mesh can split it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tf_fuse.layout.optimize.problem import listed
from tf_fuse.layout.types.errors import raise_if
from tf_fuse.layout.types.mesh import Mesh

if TYPE_CHECKING:
    from tf_fuse.layout.trace.function import TracedFunction


def batch_dimensions(
    traced: TracedFunction, batch: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Return the batch dimension of each fed tensor: the given one, or 0 if it has dimensions.

    Raises:
      LayoutError: a name is not that of an input, or the input has no such dimension.
    """
    shapes = {name: traced.tensors[name].shape for name in traced.inputs}
    raise_if(
        [
            f"batch: {name!r} is not an input of {traced.name!r}; there are: "
            f"{listed(sorted(shapes))}"
            for name in sorted(set(batch) - set(shapes))
        ]
        + [
            f"batch: input {name!r} has {len(shapes[name])} dimensions, and {at} is not one of them"
            for name, at in sorted(batch.items())
            if name in shapes and at is not None and not 0 <= at < len(shapes[name])
        ]
    )
    return {name: batch.get(name, 0 if shape else None) for name, shape in shapes.items()}


def uneven_batches(
    traced: TracedFunction, batch: Mapping[str, int | None], mesh: Mesh
) -> list[str]:
    """Return a sentence for each input whose batch the devices of a mesh cannot share evenly."""
    return [
        f"input {name!r} has a batch of {size}, which is not a multiple of the {mesh.size} "
        f"devices of mesh {str(mesh)!r}, so mode 'data' cannot split it; pad it to "
        f"{-(-size // mesh.size) * mesh.size}, or set batch to {{{name!r}: None}}"
        for name, at in batch.items()
        if at is not None and (size := traced.tensors[name].shape[at]) % mesh.size
    ]
