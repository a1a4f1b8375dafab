# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a report of a function that was saved, in this process and without a cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_fuse.report.collect import function_of, versions
from tf_fuse.report.records.model import Function, Report


def report_of_rewrite(rewrite: Any, name: str = "") -> Report:
    """Return a report of what the pass does to a graph.

    Args:
      rewrite: a `tf_fuse.explain.Rewrite`.
      name: of the function.
    """
    return Report(**versions(), functions=(_function(rewrite, name),))


def _function(rewrite: Any, name: str) -> Function:

    from google.protobuf import json_format

    from tf_fuse.explain import known_bytes

    sizes = known_bytes(rewrite)
    data = json_format.MessageToDict(rewrite.report, preserving_proto_field_name=True)
    made = function_of("", data)

    def sized(sender: str, tensor: Any) -> Any:
        return dataclasses.replace(tensor, bytes=sizes.get((sender, tensor.name), tensor.bytes))

    return dataclasses.replace(
        made,
        name=name,
        groups=tuple(
            dataclasses.replace(
                group, tensors=tuple(sized(group.sender, one) for one in group.tensors)
            )
            for group in made.groups
        ),
        left=tuple(
            dataclasses.replace(left, tensor=sized(left.sender, left.tensor)) for left in made.left
        ),
    )
