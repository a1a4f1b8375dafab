# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Load what a command line names: a graph, a program, or a model."""
