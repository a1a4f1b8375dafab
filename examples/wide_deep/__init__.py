# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A wide-and-deep model (Cheng et al., 2016) on parameter servers, in plain TensorFlow."""
