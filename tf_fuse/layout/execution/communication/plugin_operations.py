# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Call the plugin's collectives with what they take."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def flat(tensor: Any) -> Any:
    """Return a tensor as a vector."""
    return tf.reshape(tensor, [-1])


def equal_bounds(block: Any, members: int) -> list[int]:
    """Return where the blocks of all members begin, and where the last one ends."""
    return [i * block.shape.num_elements() for i in range(members + 1)]


def surely(operation: Any) -> Any:
    """Return an operation of the plugin that a function runs even if nobody reads what it makes.

    Other devices wait for it. Nothing else has to wait.
    """

    def run(**given: Any) -> Any:
        (made,) = operation(**given)
        made.graph.experimental_acd_manager.run_independently(made.op)
        return made

    return run
