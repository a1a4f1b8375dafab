# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the names of variables in plans."""

from typing import Any


def variable_name(variable: Any) -> str:
    """Return the name of a variable in plans: Keras's path, or its own."""
    return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")
