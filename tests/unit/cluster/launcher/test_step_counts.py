# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a launcher's memory has of a task on another host."""

from tf_fuse.cluster.launcher.step_counts import VARIABLE, HostReports, StepCount, Usage


def _report(steps, at_ms):
    return {
        "steps": steps, "collective_steps": 2 * steps,
        "at_ms": at_ms, "cpu_ms": 500, "memory_bytes": 1 << 20,
    }  # fmt: skip


def test_reports_of_a_host():
    count, collective = StepCount("steps"), StepCount("collective_steps")
    assert count.read() == 0 and count.usage() is None
    HostReports(count.variable[VARIABLE]).write(_report(7, 1500))
    HostReports(collective.variable[VARIABLE]).write(_report(7, 1500))
    assert (count.read(), collective.read()) == (7, 14)
    assert count.usage() == Usage(1.5, 0.5, 1 << 20)


def test_counts_of_a_task_that_starts_again_go_on():
    count = StepCount("steps")
    first = HostReports(count.variable[VARIABLE])
    first.write(_report(7, 1000))
    first.write(_report(9, 2000))
    again = HostReports(count.variable[VARIABLE])
    again.write(_report(0, 100))
    again.write(_report(3, 1100))
    assert count.read() == 12
    assert count.usage().at_s == 1.1


def test_a_report_may_lack_what_a_task_uses():
    """It has ended."""
    count = StepCount("steps")
    reports = HostReports(count.variable[VARIABLE])
    reports.write(_report(7, 1000))
    reports.write({"steps": 8, "collective_steps": 0, "at_ms": 2000, "ready": "yes"})
    assert count.read() == 8
    assert count.usage() == Usage(2.0, 0.5, 1 << 20)
