# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Coordinate the replicas of a running program: agree, order collectives, and leave."""
