# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Many small embedding tables and little else: the graph that suffers most from single receives."""
