# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks; `run.py` in a folder is its command."""
