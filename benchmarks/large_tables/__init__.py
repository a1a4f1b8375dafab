# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Embedding tables of gigabytes on parameter servers: from the start to a restore."""
