# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keys of collectives are the same numbers as in stock TensorFlow, and TensorFlow keeps none."""

import gc
from pathlib import Path

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils

import tf_fuse  # noqa: F401  (installs the options)

_KEYS = 20_000
_GROWTH_KIB = 6 << 10  # Of 15 MiB, if TensorFlow kept them.


def _memory_kib():
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(one for one in lines if one.startswith("RssAnon")).split()[1])


def test_tensors_of_keys_are_not_kept():
    tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})  # Keys become NumPy's.
    keys = cross_device_utils.CollectiveKeys()
    group = keys.get_group_key(["/device:CPU:0"])

    def tensors(count):
        for _ in range(count):
            key = keys.get_instance_key(group, "/device:CPU:0")
            with tf.device("CPU:0"):
                last = tf.convert_to_tensor(key, tf.int32)
        return int(last)

    first = int(cross_device_utils.INSTANCE_KEY_START_NUMBER)
    assert tensors(1) == first
    tensors(1000)
    before = _memory_kib()
    assert tensors(_KEYS) == first + 1000 + _KEYS
    assert _memory_kib() - before < _GROWTH_KIB
