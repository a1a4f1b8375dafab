# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates that are compiled, made by hand."""

import tensorflow as tf

SHAPE = [4, 4]


def ones(value=1.0):
    """A variable."""
    return tf.Variable(tf.fill(SHAPE, value))


class Job:
    """A momentum update, all of whose values are exact."""

    def __init__(self):
        self.w, self.m = ones(8.0), ones(2.0)

    def update(self, gradient):
        """A step."""
        self.m.assign(0.5 * self.m + gradient)
        self.w.assign_sub(0.25 * self.m)
