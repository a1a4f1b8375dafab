# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Automatic cross-replica sharding of the weight update (Xu et al., 2020).

Under construction: the analyses are here, the rewrite is not, and nothing is switched on by them.
"""
