# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keep a user's variables as slices on the devices of a mesh."""
