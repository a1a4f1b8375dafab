# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keep variables in shards on several replicas, and let programs use them as whole ones."""
