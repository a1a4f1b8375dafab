# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shard the weight update across replicas (Xu et al., 2020).

Switched on by the option `shard_weight_update`; docs/weight_update.md is for its users, and
docs/architecture/shard_update.md says how its parts work together.
"""
