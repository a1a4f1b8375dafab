# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure what messages, bytes, operations and calls cost on this machine, and fit rates."""
