# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Let branches of a `tf.cond` capture what is known when their function is called.

A lookup table of `ParameterServerStrategy` is captured so: each worker has its own. TensorFlow
does not give such captures to a branch.
"""

from __future__ import annotations

from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Takes

_NAME = "capture_call_time_value"
MEMBERS = (
    Member(
        "tensorflow.python.framework.func_graph:FuncGraph",
        _NAME,
        Takes("self", "closure", "spec", "key", "default_value", "placeholder"),
        "A step in a branch uses the lookup tables of its worker.",
        (feature_names.KERAS_FIT,),
        ON_OBJECTS,
    ),
)


def capture_outside(branch: Any) -> None:
    """Make such captures of a branch's graph captures of the graph that it is in.

    Args:
      branch: the graph of a branch, which is being traced.
    """
    import tensorflow as tf

    def capture(closure: Any, spec: Any, *args: Any, **kwargs: Any) -> Any:
        outside = branch.outer_graph.capture_call_time_value(closure, spec, *args, **kwargs)
        return tf.nest.map_structure(branch.capture, outside)

    setattr(branch, _NAME, capture)
