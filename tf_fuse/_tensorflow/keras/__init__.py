# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace and read private members of Keras 3 and tf_keras."""
