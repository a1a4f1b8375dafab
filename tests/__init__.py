# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tests: `unit` needs no cluster, `cluster` does, and `fault` breaks a part of one."""
