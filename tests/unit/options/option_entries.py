# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the options of tf_fuse add to the configuration that TensorFlow sends."""

from tensorflow.python.eager import context


def entries():
    """Our entries in the ConfigProto that TensorFlow would send: name to parameters."""
    rewrite = context.context().config.graph_options.rewrite_options
    return {
        entry.name: {
            key: getattr(value, value.WhichOneof("value"))
            for key, value in entry.parameter_map.items()
        }
        for entry in rewrite.custom_optimizers
    }
