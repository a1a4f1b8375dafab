# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan the cheapest layouts of a `tf.function`'s tensors and variables."""
