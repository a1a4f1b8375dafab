# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a worker has used of its own data, whatever the order in which its calls end."""

import types

import pytest

pytest.importorskip("keras")

import tensorflow as tf

from tf_fuse._tensorflow.keras import trainer
from tf_fuse._tensorflow.variables import coordinator
from tf_fuse.keras.packing import Packing
from tf_fuse.keras.step_queue import Call
from tf_fuse.keras.steps import Steps
from tf_fuse.keras.worker_data import WorkerIterator


class _Call(Call):
    """A call that has ended on a worker."""

    def __init__(self, worker, numbers):
        super().__init__(None, Packing())
        self._worker, self._numbers = worker, numbers

    def worker(self):
        return self._worker

    def steps(self):
        return len(self._numbers)

    def taken(self):
        return self._numbers


class _Queue:
    """Stands for the `StepQueue`."""

    workers = 2

    def __init__(self):
        self.ended = []
        self.put_back_calls = 0

    def done(self, look):
        return look(self.ended)

    def put_back(self):
        return self.put_back_calls


class _Data:
    """Stands for the `WorkerData`; notes what iterators leave out."""

    steps = None

    def __init__(self):
        self.queue = _Queue()
        self.passes = 0
        self.made = []

    def arguments(self, epoch):
        self.passes += 1
        return [self.passes, epoch]

    def make_iterators(self, arguments, used):
        self.made.append((arguments, used))
        return len(self.made)


def test_calls_that_end_in_another_order_leave_out_what_they_took():
    """Of calls with batches 0 to 2 and 3 to 5, the second one ends, and then the worker is lost."""
    data = _Data()
    iterator = WorkerIterator(data)
    iterator.iterators(data.queue)
    iterator.take(_Call(1, [3, 4]))
    data.queue.ended.append(_Call(1, [5]))
    ((_, used),) = data.made
    assert (used(1).first, used(1).others) == (0, {3, 4, 5})
    assert (used(0).first, used(0).others) == (0, set())
    data.queue.ended.append(_Call(1, [0, 2]))
    assert (used(1).first, used(1).others) == (1, {2, 3, 4, 5})
    data.queue.ended.append(_Call(1, [1]))
    assert (used(1).first, used(1).others) == (6, set())
    assert iterator.used(data.queue) == [0, 6]


def test_the_batch_of_a_call_that_ran_again_is_read_at_the_end():
    data = _Data()
    iterator = WorkerIterator(data)
    assert iterator.iterators(data.queue) == 1
    iterator.take(_Call(0, [0]))
    data.queue.put_back_calls = 1  # A call took batch 1, and ran again with batch 2.
    iterator.take(_Call(0, [2]))
    assert not iterator.take(_Call(0, []))
    assert iterator.waits_for() == [1]
    assert iterator.begin_again(data.queue)
    assert iterator.waits_for() == [0, 1]
    assert iterator.iterators(data.queue) == 2
    arguments, used = data.made[1]
    assert arguments == [1, None], "the same pass"
    assert (used(0).first, used(0).others) == (1, {2})
    assert not iterator.begin_again(data.queue)


def test_an_epoch_without_faults_does_not_begin_again():
    data = _Data()
    data.queue.put_back_calls = 3
    iterator = WorkerIterator(data)
    iterator.iterators(data.queue)
    assert not iterator.begin_again(data.queue)


def test_an_epoch_that_goes_on_has_its_own_pass():
    data = _Data()
    iterator = WorkerIterator(data)
    iterator.leave_out([2, 1], 4)
    iterator.iterators(data.queue)
    ((arguments, used),) = data.made
    assert arguments == [1, 4]
    assert [len(used(worker)) for worker in range(2)] == [2, 1]


def test_calls_that_run_again_are_counted_for_all_queues():
    put_back = []
    queue = types.SimpleNamespace(put_back=put_back.append)
    cluster = types.SimpleNamespace(_cluster=types.SimpleNamespace(closure_queue=queue))
    counts = [coordinator.count_put_back(cluster) for _ in range(2)]
    queue.put_back("one")
    queue.put_back("two")
    assert [count() for count in counts] == [2, 2]
    assert put_back == ["one", "two"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_numbers_of_batches_are_packed(steps):
    packing = Packing()
    numbers = [tf.constant(one, tf.int64) for one in (7, 9)]
    packed = packing.pack({"logs": {"a": tf.constant(1.0)}, "taken": numbers}, tf.constant(steps))
    assert packing.taken([one.numpy() for one in packed]) == [7, 9][:steps]


def test_calls_without_data_do_not_change_the_logs():
    """Zeros of theirs would be the logs of the epoch, of what is not a metric."""
    steps = types.SimpleNamespace(_sums=[], _is_behind=False)
    Steps._add(steps, _Call(0, []))
    assert not steps._is_behind


def test_a_reset_does_not_bring_back_the_length_of_the_whole():
    """`fit` and `evaluate` reset the iterator of epochs before they use it."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    epochs = EpochIterator(tf.data.Dataset.range(8).batch(2))
    assert epochs.num_batches == 4
    trainer.let_end_anywhere(epochs)
    epochs.reset()
    assert epochs.num_batches is None
