# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Solve searches by elimination, integer programs and bounds."""
