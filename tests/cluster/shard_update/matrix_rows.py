# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers and programs that are trained with `shard_weight_update` and in stock TensorFlow."""

import importlib.util
import os

LONG = os.environ.get("TF_FUSE_TEST_UPDATES") in ("1", "all")
STEPS = 40 if LONG else 4
HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
NESTEROV = {"momentum": 0.9, "nesterov": True}
# Of a library and an optimizer, its options and how many slots it has for a weight.
EXACT = [
    ("keras", "Adadelta", {}, 2),
    ("keras", "Adagrad", {}, 1),
    ("keras", "Adam", {}, 2),
    ("keras", "Adam", {"amsgrad": True, "weight_decay": 0.1}, 3),
    ("keras", "Adam", {"clipnorm": 0.1}, 2),  # (Before the all-reduce.)
    ("keras", "AdamW", {}, 2),
    ("keras", "Adamax", {}, 2),
    ("keras", "Ftrl", {}, 2),
    ("keras", "Lion", {}, 1),
    ("keras", "Nadam", {}, 2),
    ("keras", "RMSprop", {"centered": True, "momentum": 0.9}, 3),
    ("keras", "SGD", {}, 0),
    ("keras", "SGD", {"use_ema": True}, 1),
    ("keras", "SGD", {**NESTEROV, "global_clipnorm": 0.1}, 1),
    ("tf_keras", "Adadelta", {}, 2),
    ("tf_keras", "Adagrad", {}, 1),
    ("tf_keras", "Adam", {"amsgrad": True}, 3),
    ("tf_keras", "AdamW", {}, 2),
    ("tf_keras", "Adamax", {}, 2),
    ("tf_keras", "Ftrl", {}, 2),
    ("tf_keras", "Lion", {"clipvalue": 0.01}, 1),
    ("tf_keras", "Nadam", {}, 2),
    # (Of one element, its products were in another order.)
    ("tf_keras", "RMSprop", {"centered": True}, 2),
    # (What it adds to a weight is a sum.)
    ("tf_keras", "SGD", NESTEROV, 1),
    ("tf_keras.legacy", "Adadelta", {}, 2),
    ("tf_keras.legacy", "Adagrad", {}, 1),
    ("tf_keras.legacy", "Adam", {"amsgrad": True}, 3),
    ("tf_keras.legacy", "Adamax", {}, 2),
    ("tf_keras.legacy", "Ftrl", {}, 2),
    ("tf_keras.legacy", "Nadam", {}, 2),
    ("tf_keras.legacy", "RMSprop", {"centered": True, "momentum": 0.9}, 3),
    ("tf_keras.legacy", "SGD", NESTEROV, 1),
    ("v1", "AdadeltaOptimizer", {}, 2),
    ("v1", "AdagradOptimizer", {}, 1),
    ("v1", "AdamOptimizer", {}, 2),
    ("v1", "FtrlOptimizer", {"l1_regularization_strength": 0.001}, 2),
    ("v1", "GradientDescentOptimizer", {}, 0),
    ("v1", "MomentumOptimizer", {"momentum": 0.9}, 1),
    ("v1", "ProximalAdagradOptimizer", {}, 1),
    ("v1", "ProximalGradientDescentOptimizer", {}, 0),
    ("v1", "RMSPropOptimizer", {}, 2),
]
INEXACT = [
    ("keras", "Adafactor", {}, 1),
    ("keras", "Lamb", {}, 2),
    ("tf_keras", "Adafactor", {}, 1),
    ("tf_keras", "Adam", {"global_clipnorm": 0.5}, 2),
    ("tf_keras", "SGD", {"clipnorm": 0.1, "momentum": 0.9}, 1),
]
LIMIT = 1e-5  # by which any weight or slot of them may differ after all steps
# Of each program, how many gradients are sharded, and how many slots.
PROGRAMS = {
    "accumulation": (6, 12),
    "embedding": (2, 4),
    "frozen": (4, 8),
    "half": (6, 12),
    "half_scaled": (6, 12),
    "loop": (6, 12),
    "nested": (6, 12),
    "scaled": (6, 12),
    "scaled_2": (6, 12),
    "several_packs": (6, 6),
    "tied": (3, 6),
    "tiny": (5, 10),
    "two_optimizers": (6, 12),
}


def has(library):
    return HAS_TF_KERAS or not library.startswith("tf_keras")
