# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras's `fit` on parameter servers against custom loops and tf_keras."""
