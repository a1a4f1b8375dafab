# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace and read members of graphs, operations, and functions while they are traced."""
