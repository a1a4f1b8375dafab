# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the messages that processes exchange, generated from proto/tf_fuse/v1 at build time."""
