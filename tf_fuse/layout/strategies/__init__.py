# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the layouts in which an operation can run, and choose among them by dimension names."""
