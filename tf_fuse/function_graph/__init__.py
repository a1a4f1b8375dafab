# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read and change a `FunctionDef` as a graph: views, builders, order, known operations."""
