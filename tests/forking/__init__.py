# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Python processes that are forked from one that has imported TensorFlow.

A test run starts some hundreds of processes, and each spends over three seconds on importing
TensorFlow. `install` has `subprocess.Popen` fork those that run a Python file, code that imports
TensorFlow (`-c`) or a module of the project (`-m`) from a process that has imported TensorFlow and
not begun to use it (`server.py`), which takes milliseconds. These processes start theirs in the
same way, for example the tasks of a `LocalCluster`. The server is the parent of a forked process;
`Popen` treats it as a child of the process that asked for it.

What is started otherwise (another option, another program, something put before the command,
`preexec_fn`), commands of a test that look at how processes begin (`tf-fuse doctor`, `launch`), and
what runs with the variable TF_FUSE_TEST_FORK=0 in its environment, is started as ever. A test that
looks at what a launched job does, not at how its processes begin and end, adds `LAUNCHED` to the
environment of the launcher, which is forked then with all of the job. Where something else starts
the launcher, `command` is one that forks what it starts.
"""

from .popen import LAUNCHERS, VARIABLE, command, install

__all__ = ["LAUNCHED", "VARIABLE", "command", "install"]

LAUNCHED = {VARIABLE: LAUNCHERS}
