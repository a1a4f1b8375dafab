# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make the keys of collectives of TensorFlow's strategies numbers of NumPy.

A strategy gives each collective of each step a new key, which becomes a tensor. TensorFlow keeps
the tensor of each Python number until the program ends (some 800 bytes), and not of NumPy's. Keys
of strategies that are made before the first option is set stay Python's.
"""

from __future__ import annotations

import numpy as np

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Is, Member

_FIRST = Member(
    "tensorflow.python.distribute.cross_device_utils",
    "INSTANCE_KEY_START_NUMBER",
    Is("int"),
    "Tensors of NumPy's numbers are not kept.",
    (feature_names.COLLECTIVES,),
    AT_FIRST_USE,
)
MEMBERS = (_FIRST,)


def install() -> None:
    """Make all keys NumPy's, once per process: they are counted from the first one on."""
    if monkey_patch.is_replaced(_FIRST):
        return
    monkey_patch.replace(_FIRST, np.int32(getattr(_FIRST.resolve(), _FIRST.name)))
