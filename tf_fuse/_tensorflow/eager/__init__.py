# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace and read members of the eager context, function calls and the gradient tape."""
