# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The lock of variables in shards: threads that read, write, and are interrupted by handlers."""

from __future__ import annotations

import threading

import pytest

from tf_fuse.layout.execution.variables.read_write_lock import ReadWriteLock
from tf_fuse.layout.types.errors import LayoutError


def _waits(turns: ReadWriteLock) -> None:
    """Returns when a thread waits to write."""
    while not turns._waiting:
        threading.Event().wait(0.001)


def _ends(*bodies) -> list[str]:
    """What threads did, one after the other begun; each has to end."""
    done: list[str] = []
    threads = [threading.Thread(target=one, args=(done,), daemon=True) for one in bodies]
    for one in threads:
        one.start()
    for one in threads:
        one.join(100)
    assert not any(one.is_alive() for one in threads), done
    return done


def test_a_thread_that_reads_comes_in_again_while_another_waits_to_write():
    """As a signal handler or a destructor that reads a variable in the middle of a call."""
    turns, reads = ReadWriteLock(), threading.Event()

    def reader(done: list[str]) -> None:
        with turns.shared():
            reads.set()
            _waits(turns)
            with turns.shared():
                done.append("again")
            done.append("read")

    def writer(done: list[str]) -> None:
        reads.wait()
        with turns.alone(), turns.shared(), turns.alone():
            done.append("written")

    assert _ends(reader, writer) == ["again", "read", "written"]


def test_a_thread_that_reads_gets_an_error_where_it_writes():
    """It would wait for itself; and afterwards all may come in."""
    turns = ReadWriteLock()

    def both(done: list[str]) -> None:
        with turns.shared():
            with pytest.raises(LayoutError, match="while the same thread reads"):
                turns.alone().__enter__()
            done.append("refused")
        with turns.alone():
            done.append("written")

    assert _ends(both) == ["refused", "written"]


def test_a_thread_that_waits_to_write_may_read():
    """As a signal handler does while the main thread waits; also where two threads do so."""
    turns, reads, ends = ReadWriteLock(), threading.Event(), threading.Event()
    wait, handled = turns._condition.wait, set()

    def reader(done: list[str]) -> None:
        def interrupted(timeout=None):
            if threading.get_ident() not in handled:
                handled.add(threading.get_ident())
                with turns.shared():
                    done.append("handled")
                if len(handled) == 2:
                    ends.set()
            return wait(timeout)

        with turns.shared():
            turns._condition.wait = interrupted
            reads.set()
            ends.wait()

    def writer(done: list[str]) -> None:
        reads.wait()
        with turns.alone():
            done.append("written")

    assert _ends(reader, writer, writer) == ["handled"] * 2 + ["written"] * 2


def test_a_handler_that_waits_in_the_middle_of_waiting_takes_no_notification_along():
    """It is notified in place of what it interrupted, which nobody notifies any more then."""
    turns, writes, ends = ReadWriteLock(), threading.Event(), threading.Event()
    wait = turns._condition.wait

    def writer(done: list[str]) -> None:
        with turns.alone():
            writes.set()
            ends.wait()
            done.append("written")

    def reader(done: list[str]) -> None:
        def interrupted(timeout=None):
            turns._condition.wait = wait
            ends.set()
            with turns.shared():
                done.append("handled")
            return wait(timeout)

        writes.wait()
        turns._condition.wait = interrupted
        with turns.shared():
            done.append("read")

    assert _ends(writer, reader) == ["written", "handled", "read"]
