# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimate the seconds and bytes of strategies, relayouts and whole steps."""
