# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What was written for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def scalars(folder: Path | str) -> dict[str, dict[int, float]]:
    """The scalars in the files of a folder: tag to step to value, the last of a step."""
    import tensorflow as tf

    found: dict[str, dict[int, Any]] = {}
    for path in sorted(Path(folder).rglob("*tfevents*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                steps = found.setdefault(value.tag, {})
                steps[event.step] = tf.make_ndarray(value.tensor).item()
    return found
