# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What messages, bytes, operations and calls cost on one machine: measured, fitted, kept."""
