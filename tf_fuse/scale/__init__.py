# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Predict how a job on parameter servers scales, from its graph and the costs of one machine.

`load_model` and `steps` make a step graph of a model, `calibration` measures the `rates` of a
machine, `simulation` runs step graphs on simulated hosts, and `prediction` compares them.
"""
