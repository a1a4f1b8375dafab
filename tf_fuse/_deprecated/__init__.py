# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Former names that still work, with a warning, until 0.4.0."""
