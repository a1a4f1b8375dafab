# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Messages that cross a process border, generated from proto/tf_fuse/v1 at build time."""
