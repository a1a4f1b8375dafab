# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start local clusters of real processes, and run one task of a cluster.

Importing this package does not import TensorFlow. It imports nothing of `tf_fuse` outside this
folder either, so `examples/standalone.py` can load it by path in a process that must not have the
plugin loaded.
"""

from .local_cluster import LocalCluster
from .task_process import ClusterStartError, Host

__all__ = ["ClusterStartError", "Host", "LocalCluster"]
