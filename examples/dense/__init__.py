# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Deep layers with large weights, alone or on top of many small embedding tables."""
