# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run tasks of a job on hosts that ssh reaches.

| module | does |
|---|---|
| `deal` | deals the tasks to the hosts |
| `ssh_task` | stands here for a task, as a process: starts it by ssh, and ends it |
| `host_task` | runs the task on its host, and reports what it does |
"""
