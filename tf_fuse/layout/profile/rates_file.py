# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Save and load rates, as a `tf_fuse.v1.LayoutRates`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from tf_fuse.layout.cost.model import ContractionRates, Rates
from tf_fuse.layout.optimize.plans.saved_plan import written
from tf_fuse.layout.relayout.link_rates import Hosts, Link, Links
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.v1 import layout_pb2

_VERSION = 2
_SCALARS = (
    "seconds_per_flop",
    "seconds_per_byte",
    "seconds_per_operation",
    "overlap",
    "seconds_per_call",
)

_LINK = tuple(one.name for one in dataclasses.fields(Link))


def save_rates(rates: Rates, path: str | os.PathLike[str]) -> None:
    """Write rates into a file. A reader sees the old file or the new one, whole."""
    written(_message(rates), path)


def _message(rates: Rates) -> Any:
    message = layout_pb2.LayoutRates(version=_VERSION)
    for axis, size in rates.mesh.dims:
        message.mesh.add(name=axis, size=size)
    if isinstance(rates.links, Hosts):
        message.hosts.CopyFrom(layout_pb2.LayoutHosts(**dataclasses.asdict(rates.links)))
    else:
        links = dict(rates.links)
        for axis in rates.mesh.axes:
            message.links.add(**dataclasses.asdict(links[axis]))
    for name in _SCALARS:
        setattr(message, name, getattr(rates, name))
    for kind, one in rates.contractions:
        message.contractions.add(kind=kind, **one._asdict())
    if rates.alone is not None:
        message.alone.CopyFrom(_message(rates.alone))
    return message


def load_rates(path: str | os.PathLike[str]) -> Rates:
    """Read rates that `save_rates` wrote.

    Raises:
      LayoutError: the file holds no rates, or numbers that rates cannot have.
      OSError: it cannot be read.
    """
    message: Any = layout_pb2.LayoutRates()
    try:
        message.ParseFromString(Path(path).read_bytes())
    except DecodeError as error:
        raise LayoutError(f"{path} holds no rates: {error}") from None
    try:
        return _rates(message)
    except LayoutError as error:
        raise LayoutError([f"{path}: {one}" for one in error.problems]) from None


def _rates(message: Any) -> Rates:
    if message.version != _VERSION:
        raise LayoutError(
            f"the rates have version {message.version}, and this is for version {_VERSION}; "
            "measure again"
        )
    links = _links(message)
    mesh = Mesh([(one.name, one.size) for one in message.mesh])
    contractions = {
        one.kind: ContractionRates(*(getattr(one, name) for name in ContractionRates._fields))
        for one in message.contractions
    }
    alone = _rates(message.alone) if message.HasField("alone") else None
    scalars = {name: getattr(message, name) for name in _SCALARS}
    return Rates(mesh, links, **scalars, contractions=contractions, alone=alone)


def _links(message: Any) -> Links:
    if message.HasField("hosts"):
        hosts = message.hosts
        return Hosts(hosts.devices_per_host, _link(hosts.inside), _link(hosts.between))
    if len(message.mesh) != len(message.links):
        raise LayoutError(
            f"there are {len(message.mesh)} axes and {len(message.links)} links; measure again"
        )
    axes = [one.name for one in message.mesh]
    return dict(zip(axes, map(_link, message.links), strict=True))


def _link(message: Any) -> Link:
    return Link(*(getattr(message, name) for name in _LINK))
