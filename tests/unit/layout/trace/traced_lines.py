# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operations of traced functions as lines of text, and the shape of most inputs."""

from __future__ import annotations

import tensorflow as tf

SPEC = tf.TensorSpec([8, 4])


def lines(traced) -> list[str]:
    """Each operation in a line: kind, what it makes, of what, attributes."""
    return [
        f"{one.kind} {', '.join(t.name for t in one.outputs)}"
        f"({', '.join(t.name for t in one.inputs)})"
        + "".join(f" {name}={value}" for name, value in one.attributes)
        for one in traced.operations
    ]
