# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make step graphs: `trace` reads a model, `placement` puts it on tasks, `partition` counts."""
