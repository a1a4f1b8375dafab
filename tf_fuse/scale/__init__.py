# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Predict how a job on parameter servers scales, from its graph and the costs of one machine.

`steps` makes a step graph of a model, `costs` measures and keeps the costs of a machine,
`simulation` runs step graphs on simulated hosts, and `prediction` compares them.
"""
