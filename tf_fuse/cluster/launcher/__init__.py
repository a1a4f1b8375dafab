# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start the tasks of a job on one machine or many, or one task that a platform has started.

| module | does |
|---|---|
| `local_job`, `program` | starts a job's tasks here and by ssh, watches them, ends them |
| `platforms` | finds and runs the one task that Slurm or Kubernetes has started |
| `hosts` | runs tasks on other hosts by ssh |
| `first_process` | reaps and passes on signals as the first process of a container |
| `guardian` | ends everything if the launcher is killed |
| `log_follower`, `status_line`, `job_health`, `step_counts` | show what the tasks do |
"""
