# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `GradientTape.gradient`, which computes gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Member, Takes

_GRADIENT = Member(
    "tensorflow.python.eager.backprop:GradientTape",
    "gradient",
    Takes("self", "target", "sources", "output_gradients", "unconnected_gradients"),
    "A variable in pieces has several handles; the tape is asked for the gradients of the pieces.",
    (feature_names.VARIABLES_IN_PIECES,),
    AT_FIRST_USE,
)
MEMBERS = (_GRADIENT,)


def extend(gradient: Callable[..., Any]) -> None:
    """Extend `GradientTape.gradient`, once per process.

    Args:
      gradient: gets the stock method, and then what that gets.
    """
    import tensorflow as tf

    cls = _GRADIENT.resolve()
    if monkey_patch.is_replaced(_GRADIENT):
        return
    stock = cls.gradient

    # (As all of TensorFlow's own code, it is not rewritten where a program's function is.)
    @tf.autograph.experimental.do_not_convert
    def extended(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        return gradient(stock, self, target, sources, *args, **kwargs)

    extended.__doc__ = stock.__doc__
    monkey_patch.replace(_GRADIENT, extended)
