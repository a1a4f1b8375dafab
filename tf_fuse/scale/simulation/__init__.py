# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Simulate hosts, links, and the tasks that run a step graph on them, with simpy."""
