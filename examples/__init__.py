# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Example jobs; also what the benchmarks and `make demo` run."""
