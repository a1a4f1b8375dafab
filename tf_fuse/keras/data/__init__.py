# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The data of `fit`, `evaluate` and `predict`: who reads it, and which part."""
