# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace and read private members of TensorFlow and Keras, and check them.

One file per class or module of theirs, in folders named after theirs. Each file lists its members:
what is replaced or read, why, when, which feature needs it, and the shape that is relied on.
`monkey_patch.py` replaces members and puts the originals back, `features.py` switches off a feature
whose members have another shape, and `python -m tf_fuse doctor` checks all of them.
"""
