# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Choose the rates of a plan: measured ones, or assumed ones."""

from __future__ import annotations

from typing import Final

from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.relayout.link_rates import Hosts, Link, Links
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh

# For a machine without measured rates: 1 Tflop/s, 100 GB/s of memory, 10 us and 10 GB/s of network.
_LINK: Final = Link(1e-5, 1e-10)
_SECONDS_PER_FLOP: Final = 1e-12
_SECONDS_PER_BYTE: Final = 1e-11
_SECONDS_PER_OPERATION: Final = 1e-6


def assumed_rates(mesh: Mesh, links: Links | None = None) -> Rates:
    """Return rates for a mesh that nobody measured: orders of magnitude of a server.

    Args:
      mesh: the devices.
      links: `Hosts`, where the devices are; or of the axes: 10 microseconds for each message and
        10 GB/s where there are none.

    Returns:
      With 1e-12 seconds for each floating-point operation, 1e-11 for each byte of memory that is
      read or written, and 1e-6 for each operation.

    Raises:
      LayoutError: there is a link for an unknown axis.
    """
    if not isinstance(links, Hosts):
        links = {axis: _LINK for axis in mesh.axes} | dict(links or {})
    return Rates(mesh, links, _SECONDS_PER_FLOP, _SECONDS_PER_BYTE, _SECONDS_PER_OPERATION)


def rates_for(mesh: Mesh, rates: Rates | None, links: Links | None) -> Rates:
    """Return the rates of a plan: the given ones, or assumed ones with the given links.

    Raises:
      LayoutError: both are given, the rates are for another mesh, or a link is for an unknown axis.
    """
    if rates is None:
        return assumed_rates(mesh, links)
    if links is not None:
        raise LayoutError("rates have links already; give rates or links, not both")
    if rates.mesh != mesh:
        raise LayoutError(
            f"the plan is for mesh {str(mesh)!r}, and the rates are for {str(rates.mesh)!r}; take "
            "both for the same one"
        )
    return rates
