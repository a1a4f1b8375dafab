# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a replica that leaves hands over, and who may use it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).with_name("handover_programs.py")
_ROOT = Path(__file__).resolve().parents[4]
# Those that set more than a process's replicas come alone.
_CASES = [
    [
        "between_steps",
        "a_step_that_all_have_begun",
        "a_step_that_one_has_not_begun",
        "another_step_after_the_handover",
        "half_of_a_second_handover",
        "handed_over_anew_while_it_is_read",
        "who_leaves_while_it_is_read",
        "an_error_that_passes",
        "a_handover_that_fails",
        "three_replicas",
        "all_are_asked_at_once",
        "a_forked_child",
        "a_reader_that_another_thread_uses",
    ],
    ["a_step_that_goes_on_while_others_begin_it", "nobody_can_be_reached"],
    ["no_time"],
    ["an_exception"],
    ["a_handler_of_sigterm_that_is_set_later"],
]


@pytest.mark.parametrize("cases", _CASES, ids=lambda cases: cases[0])
def test_handovers(cases):
    env = {**os.environ, "PYTHONPATH": str(_ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    env.pop("TF_FUSE_EXIT_WAIT_S", None)
    run = subprocess.run(
        [sys.executable, str(_PROGRAM), *cases],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.stdout.splitlines() == cases, run.stderr
