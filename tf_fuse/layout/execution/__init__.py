# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run plans of functions on the devices of a mesh.

`pipeline` runs a plan: `program` lists what each device does, `emission` writes it into a graph,
`kernels` computes on slices, `communication` moves them, `variables` holds the user's variables in
slices, and `traffic` reads from a graph what it sends.
"""
