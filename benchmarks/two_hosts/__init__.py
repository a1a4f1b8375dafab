# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tf_fuse gains between two hosts, whatever the links."""
