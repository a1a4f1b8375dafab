# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an epoch leaves out that goes on from a backup."""

import itertools
import logging
import types

import pytest

pytest.importorskip("keras")

from tf_fuse.keras import backups
from tf_fuse.keras.worker_data import WorkerIterator


def _workers(steps=None, workers=2):
    queue = types.SimpleNamespace(workers=workers, done=lambda look: look([]))
    return WorkerIterator(types.SimpleNamespace(queue=queue, steps=steps)), queue


def _calls(steps, data, count=1):
    return ((first, first + count - 1, data) for first in range(0, steps, count))


def test_batches_that_the_coordinator_reads():
    data = iter("abcde")
    found = [(first, last, next(it)) for first, last, it in backups._go_on(_calls(5, data), [3], 0)]
    assert found == [(3, 3, "d"), (4, 4, "e")]


@pytest.mark.parametrize(("made", "expected"), [(2, ["cd", "e"]), (4, ["e"]), (6, [])])
def test_calls_of_several_steps(made, expected):
    """The last call may have run fewer steps than Keras counts."""
    data = iter("abcde")
    found = []
    for _ in backups._go_on(_calls(5, data, count=2), [made], 0):
        found.append("".join(itertools.islice(data, 2)))
    assert found == expected


def test_each_worker_leaves_out_what_it_has_used():
    data, queue = _workers()
    assert [first for first, _, _ in backups._go_on(_calls(5, data), [1, 2], 0)] == [3, 4]
    assert data.used(queue) == [1, 2]


def test_steps_of_an_epoch_are_counted_whichever_worker_made_them():
    data, queue = _workers(steps=5, workers=3)
    calls = backups._go_on(_calls(5, data), [3], 0)
    assert next(calls)[0] == 3
    assert data.made == 3
    assert [first for first, _, _ in calls] == [4]
    assert data.used(queue) == [0, 0, 0]


def test_an_epoch_that_had_made_all_steps_leaves_nothing_to_the_next_one():
    data, _ = _workers(steps=5)
    assert list(backups._go_on(_calls(5, data), [5], 0)) == []
    assert data.made == 0


def test_another_number_of_workers_begins_anew(caplog):
    data, queue = _workers(workers=3)
    with caplog.at_level(logging.WARNING, "tf_fuse"):
        assert [first for first, _, _ in backups._go_on(_calls(3, data), [1, 2], 0)] == [0, 1, 2]
    assert data.used(queue) == [0, 0, 0]
    assert caplog.messages == [
        "the epoch begins anew: the backup is of data that 2 workers read, not 3"
    ]
