# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Readers of the UCI Adult and Criteo files, synthetic data, and the encoding the workers read."""
