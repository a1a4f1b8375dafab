# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs plans of functions on the devices of a mesh.

`program` writes a plan out, `emission` writes the program into a graph, operation by operation,
with `kernels` for what a device does with its slices and `relayouts` between; `communicator` and
`rings` are what devices tell each other by. `variables` are the user's, in parts. `traffic` reads
from the graph what is sent, so that it can be held against the plan.
"""
