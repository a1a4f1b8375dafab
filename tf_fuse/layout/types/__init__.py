# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define meshes, dimensions, layouts of tensors and their notations."""
