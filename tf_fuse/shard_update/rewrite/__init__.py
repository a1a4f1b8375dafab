# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the function in which a replica updates its shard of the weights."""
