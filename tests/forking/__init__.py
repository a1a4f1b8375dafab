# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Python processes that are forked from one that has imported TensorFlow.

A test run starts some hundreds of processes, and each spends over three seconds on importing
TensorFlow. `install` has `subprocess.Popen` fork those that run a Python file, code that imports
TensorFlow (`-c`) or a module of the project (`-m`) from a process that has imported TensorFlow and
not begun to use it (`server.py`), which takes milliseconds. They, in turn, start theirs in the same
way: the tasks of a `LocalCluster`, say. A process that is forked is no child of the one that asked
for it, but to `Popen` it looks like one.

What is started otherwise (another option, another program, something put before the command,
`preexec_fn`), commands of a test that look at how processes begin (`tf-fuse doctor`, `launch`), and
what runs with the variable TF_FUSE_TEST_FORK=0 in its environment, is started as ever.
"""

from .popen import VARIABLE, install

__all__ = ["VARIABLE", "install"]
