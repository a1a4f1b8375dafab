# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite functions: outline clusters, replace divisions, share reads, switch locks on."""
