# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How well `tf-fuse plan-cluster` predicts jobs that run here."""
