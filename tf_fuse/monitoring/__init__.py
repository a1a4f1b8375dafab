# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count what this process and every task do, and list the receives that wait."""
