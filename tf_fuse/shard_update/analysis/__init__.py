# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the weight updates of a function that replicas can share; change nothing."""
