# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Predict what TensorFlow's graph optimizer, Grappler, makes of a fusion cluster."""
