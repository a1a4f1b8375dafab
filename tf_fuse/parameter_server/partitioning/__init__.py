# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Split variables over parameter servers, and let programs use them as whole ones."""
