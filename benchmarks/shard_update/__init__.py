# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates of weights: whole, sharded, and in PyTorch."""
