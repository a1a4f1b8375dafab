# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Frames that wait at a data channel: who may take them, and that none stays.

The test is the receiver; it sends requests and speaks the channel by hand.
"""

from contextlib import closing
from typing import ClassVar

import pytest

from tests.fault import coordinator, raw_channel, raw_worker

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

# From a few bytes, which go through the socket, to more blocks of shared memory than go at once; a
# Python client takes no larger answers.
_ELEMENTS = {"few": 3, "some": 9_000, "many": 1_000_000}
_LARGE = {"TF_FUSE_MAX_PACKED_TENSOR_BYTES": str(1 << 30), "TF_FUSE_MAX_FRAME_BYTES": str(1 << 30)}
_UNAVAILABLE, _INVALID_ARGUMENT, _ABORTED = 14, 3, 10


class _Task(raw_worker.SenderTask):
    AT_REST: ClassVar = {**raw_worker.SenderTask.AT_REST, "lent_chunks": 0, "unsent_frame_bytes": 0}

    def __init__(self, paths, **env):
        self.tcp = paths == "tcp"
        super().__init__(
            workers=1,
            protocol="grpc+fuse",
            env={**_LARGE, "TF_FUSE_COLLECTIVE_PATHS": paths, **env},
        )
        self.card = self._card()
        self._graphs = {}

    def _card(self):
        from tf_fuse.v1 import collectives_pb2, fuse_recv_pb2

        content = self.sender.ask(fuse_recv_pb2.QUESTION_CARD)
        return collectives_pb2.PeerCard.FromString(content)

    def connect(self):
        return raw_channel.Channel(self.card, self.tcp)

    def _graph(self, size):
        import tensorflow as tf

        if size not in self._graphs:
            names = ("numbers", "halves", "texts", "none")
            with tf.Graph().as_default() as graph:
                tf.range(_ELEMENTS[size], name="numbers")
                tf.cast(tf.range(7), tf.float16, name="halves")
                tf.constant(["", "abc", "d" * 100], name="texts")
                tf.zeros([0, 3], name="none")
            self._graphs[size] = self.sender.register(graph, {name: name for name in names})
        return self._graphs[size]

    def receive(self, size, **fields):
        """A step that runs, and the bytes of its answer."""
        step = next(self.steps)
        running = self.sender.run(self._graph(size), step)
        names = ["halves", "numbers", "texts", "none"]
        answer = self.sender.receive(step, names, fused={"max_frame_bytes": 1 << 30, **fields})
        content = raw_worker.tensor_proto(answer.result()).tensor_content
        running.result()
        return step, content

    def parcel(self, channel, size):
        """A step, and the parcel that its answer names."""
        from tf_fuse.v1 import fuse_recv_pb2

        step, content = self.receive(size, channel=channel.number, channel_bytes=1)
        assert content.startswith(raw_channel.PARCEL_MAGIC)
        magic = len(raw_channel.PARCEL_MAGIC)
        return step, fuse_recv_pb2.Parcel.FromString(content[magic:])

    def lent(self):
        return self.sender.counters()["lent_chunks"]


@pytest.fixture(scope="module", params=["shm", "tcp"])
def task(request):
    task = _Task(request.param)
    yield task
    task.close()


@pytest.fixture
def channel(task):
    channel = task.connect()
    yield channel
    channel.close()


@pytest.mark.parametrize("size", sorted(_ELEMENTS))
def test_a_parcel_has_the_bytes_of_the_frame(task, channel, size):
    step, frame = task.receive(size)
    task.sender.cleanup(step)
    assert frame.startswith(b"TFFR")
    step, parcel = task.parcel(channel, size)
    assert parcel.bytes == len(frame)
    assert task.lent() == 1
    assert channel.take(parcel) == frame
    assert task.at_rest() == task.AT_REST
    task.sender.cleanup(step)


def test_a_frame_of_fewer_bytes_is_the_answer(task, channel):
    step, frame = task.receive("some")
    task.sender.cleanup(step)
    for channel_bytes, expected in [(len(frame), b"TFFP"), (len(frame) + 1, b"TFFR")]:
        step, content = task.receive("some", channel=channel.number, channel_bytes=channel_bytes)
        assert content[:4] == expected
        task.sender.cleanup(step)
    assert task.at_rest() == task.AT_REST


def test_a_channel_that_is_not_there_is_not_taken(task, channel):
    gone = task.connect()
    gone.close()
    for number in (0, 1, channel.number ^ 1, gone.number):
        assert coordinator.wait_until(
            lambda number=number: _answer_and_end(task, channel=number)[:4] == b"TFFR"
        )
    assert task.at_rest() == task.AT_REST


def _answer_and_end(task, **fields):
    step, content = task.receive("some", channel_bytes=1, **fields)
    task.sender.cleanup(step)
    return content


def test_a_parcel_is_taken_once_and_by_its_channel_alone(task, channel):
    other = task.connect()
    step, parcel = task.parcel(channel, "some")
    with pytest.raises(raw_channel.ChannelError, match="does not exist") as error:
        other.take(parcel)
    assert error.value.code == _UNAVAILABLE
    other.close()
    with pytest.raises(raw_channel.ChannelError, match="the request says 7") as error:
        channel.take(parcel, 7)
    assert error.value.code == _INVALID_ARGUMENT
    assert len(channel.take(parcel)) == parcel.bytes
    with pytest.raises(raw_channel.ChannelError, match="does not exist") as error:
        channel.take(parcel)
    assert error.value.code == _UNAVAILABLE
    task.sender.cleanup(step)
    assert task.at_rest() == task.AT_REST


def test_a_parcel_outlives_the_graph_but_not_the_step(task, channel):
    step, parcel = task.parcel(channel, "many")
    # The graph has ended; its step is held by the parcel.
    assert task.lent() == 1
    task.sender.cleanup(step)
    assert task.at_rest() == task.AT_REST
    with pytest.raises(raw_channel.ChannelError, match=f"Cleanup {step}") as error:
        channel.take(parcel)
    assert error.value.code == _ABORTED


def test_parcels_end_with_the_receiver(task):
    channel = task.connect()
    steps = [task.parcel(channel, "many")[0] for _ in range(3)]
    assert task.lent() == 3
    channel.close()
    assert task.at_rest() == task.AT_REST
    for step in steps:
        task.sender.cleanup(step)


def test_a_receiver_that_goes_in_the_middle_leaves_nothing(task):
    channel = task.connect()
    step, parcel = task.parcel(channel, "many")
    channel.ask(parcel)
    channel.close()
    assert task.at_rest() == task.AT_REST
    task.sender.cleanup(step)


def test_a_receiver_that_does_not_read_holds_up_nobody(task, channel):
    slow = task.connect()
    step, parcel = task.parcel(slow, "many")
    slow.ask(parcel)
    other, taken = task.parcel(channel, "many")
    assert len(channel.take(taken)) == taken.bytes
    task.sender.cleanup(other)
    # The step of the first is over; its bytes are read nevertheless.
    task.sender.cleanup(step)
    assert len(slow.answer(parcel.bytes)) == parcel.bytes
    slow.close()
    assert task.at_rest() == task.AT_REST


@pytest.fixture(scope="module")
def small_task():
    """As `task`, with eight blocks of shared memory."""
    task = _Task("shm", TF_FUSE_MAX_SHARED_MEMORY_BYTES=str(8 << 20))
    yield task
    task.close()


def test_a_receiver_that_gives_nothing_back_holds_up_nobody(small_task):
    """It keeps a quarter of the slots at most, and goes on through the socket."""
    steps = []
    with closing(small_task.connect()) as slow, closing(small_task.connect()) as other:
        for _ in range(4):
            step, parcel = small_task.parcel(slow, "many")
            steps.append(step)
            slow.ask(parcel)
        assert coordinator.wait_until(lambda: small_task.lent() == 2), small_task.lent()
        for _ in range(3):
            step, parcel = small_task.parcel(other, "many")
            steps.append(step)
            assert len(other.take(parcel)) == parcel.bytes
        # (What the other gives back may still be on its way.)
        assert coordinator.wait_until(lambda: small_task.lent() == 2), small_task.lent()
    for step in steps:
        small_task.sender.cleanup(step)
    assert small_task.at_rest() == small_task.AT_REST


def test_memory_of_a_lost_receiver_is_marked_when_it_is_used_again(small_task):
    """The receiver may live, and still read."""
    lost, other = small_task.connect(), small_task.connect()
    step, parcel = small_task.parcel(lost, "many")
    lost.ask(parcel)
    loan = lost.loan()
    assert loan.intact()
    content = loan.read()
    lost.close()
    assert coordinator.wait_until(lambda: small_task.lent() == 0)
    # Nobody else needs it: what was lent is there still.
    assert loan.read() == content and loan.intact()
    for size in ("some", "many"):
        following, parcel = small_task.parcel(other, size)
        assert len(other.take(parcel)) == parcel.bytes
        small_task.sender.cleanup(following)
    assert not loan.intact()
    other.close()
    small_task.sender.cleanup(step)
    assert small_task.at_rest() == small_task.AT_REST


def test_by_parts(task, channel):
    from tf_fuse.v1 import fuse_recv_pb2

    step = next(task.steps)
    running = task.sender.run(task._graph("many"), step)
    running.result()
    names = ["numbers", "halves"]
    answer = task.sender.receive_parts(
        step, names, next(task.requests), max_frame_bytes=1 << 30,
        channel=channel.number, channel_bytes=1 << 20,
    )  # fmt: skip
    content = raw_worker.tensor_proto(answer.result()).tensor_content
    assert content.startswith(raw_channel.PARCEL_MAGIC)
    frame = channel.take(fuse_recv_pb2.Parcel.FromString(content[4:]))
    assert frame.startswith(b"TFFR")
    # The last payload: the numbers, as they lie in memory, or the halves behind them.
    import numpy as np

    assert np.arange(_ELEMENTS["many"], dtype=np.int32).tobytes() in frame
    task.sender.cleanup(step)
    assert task.at_rest() == task.AT_REST


def test_without_shared_memory_a_parcel_goes_through_the_socket():
    task = _Task("shm", TF_FUSE_MAX_SHARED_MEMORY_BYTES="0")
    try:
        step, frame = task.receive("many")
        task.sender.cleanup(step)
        channel = task.connect()
        step, parcel = task.parcel(channel, "many")
        assert channel.take(parcel) == frame
        assert task.sender.counters()["shared_memory_bytes"] == 0
        task.sender.cleanup(step)
        assert task.at_rest() == task.AT_REST
    finally:
        task.close()


def test_a_task_that_allows_no_channel_has_no_card():
    task = _Task("grpc")
    try:
        assert task.card.SerializeToString() == b""
        step, content = task.receive("some", channel=1, channel_bytes=1)
        assert content.startswith(b"TFFR")
        task.sender.cleanup(step)
    finally:
        task.close()
