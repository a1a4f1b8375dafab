# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replicas of one process that leave as if each had its own; a test runs each function.

python tests/unit/shard_update/runtime/handover_programs.py NAME
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

import tensorflow as tf

from tests.unit.shard_update.runtime.handover_replicas import (
    UNREACHABLE,
    Handler,
    is_error,
    log,
    logged,
    start_replicas,
)
from tf_fuse.shard_update.runtime import exit_handover, handover_protocol
from tf_fuse.sharded_variable.local_shards import inherited_name
from tf_fuse.sharded_variable.peers import Reader


def between_steps():
    """What is handed over at the end is read, also if a step has begun that failed."""
    one, other = start_replicas()
    one.fail()
    other.leave()
    assert one.marks() == [-1, 3]
    other.dies(one)
    one.lose(1)
    assert one.read() == [3.0]


def a_step_that_all_have_begun():
    """Its values are of no step: they are not handed over, also if it has failed."""
    for after_sigterm in (True, False):
        one, other = start_replicas()
        one.fail(3.5)
        other.fail(4.5)
        other.leave(after_sigterm)
        assert one.marks() == [-1, -1]
        other.dies(one)
        one.lose(1)
        assert is_error(one) == "error"
        (line, *more) = log
        assert line.startswith("This replica's shard of the optimizer's state after step 3 is lost")
        assert "a step has changed it that has failed" in line
        assert [("is lost if this process is killed now" in text) for text in more] == (
            [True] if after_sigterm else []
        )
        log.clear()


def a_step_that_goes_on_while_others_begin_it():
    """The copy is of no step where the last one has begun before it was complete."""
    one, other = start_replicas()
    other.fail(3.5)

    def begin(key):
        if key[0] == "hands over" and len(key) == 4:
            one.shard_group.begin()

    other.readers[0].before = begin
    exit_handover.ANSWER_S = 0.2
    other.leave()
    assert one.marks() == [-1, -1]
    assert "a step has changed it" in log[0]


def a_step_that_one_has_not_begun():
    """Then nobody has changed a part; until that one begins it, too."""
    one, other = start_replicas()
    other.fail()
    other.leave(after_sigterm=True)
    assert one.marks() == [-1, -5]
    other.dies(one)
    one.lose(1)
    assert one.read() == [3.0]
    one.fail(4)
    assert is_error(one) == "error"


def another_step_after_the_handover():
    """Who begins one says so, where its shards are."""
    one, other = start_replicas()
    other.leave(after_sigterm=True)
    assert one.marks() == [-1, 3]
    other.fail(4)
    assert one.marks() == [-1, -5]
    one.fail(4)
    other.dies(one)
    one.lose(1)
    assert is_error(one) == "error"


def half_of_a_second_handover():
    """What was handed over before is not read as whole while it is overwritten."""
    one, other = start_replicas()
    other.leave(after_sigterm=True)
    other.state.before_step = lambda shard_group: None
    other.step()
    seen = []

    def look(key):
        if key[0] == "hands over" and len(key) == 4:
            seen.append(one.marks())

    other.readers[0].before = look
    other.leave()
    assert seen == [[-1, -1]]
    assert one.marks() == [-1, 4]


def handed_over_anew_while_it_is_read():
    """The reader notices."""
    one, other = start_replicas()
    other.leave(after_sigterm=True)
    other.dies(one)
    one.lose(1)
    assert one.read() == [3.0]
    joiner = one.shard_group._unsharder
    assert joiner._are_still({1: 0}, [[-1, 3], [-1, 3]], 3)
    assert not joiner._are_still({1: 0}, [[-1, 3], [-1, 4]], 3)
    try:
        joiner._are_still({1: 0}, [[-1, -1], [-1, -1]], 3)
    except tf.errors.UnavailableError as error:
        assert "no longer has what" in error.message
    else:
        raise AssertionError


def who_leaves_while_it_is_read():
    """What the reader was handed since it began to read counts; also if others leave then."""
    one, *others = start_replicas(3)
    gone = []

    def leave(key):
        if key[0] == one.shard_group.scope and others:
            other = others.pop()
            other.leave()
            other.dies(one)
            gone.append(other.rank)
            raise UNREACHABLE
        if any((rank, rank) in key[2] for rank in gone):
            raise UNREACHABLE

    one.all.before = leave
    assert one.read() == [3.0]
    assert one.marks() == [-1, 3, 3]
    assert log == []


def an_error_that_passes():
    """It is tried again."""
    one, other = start_replicas()
    errors = iter([UNREACHABLE] * 3)

    def fail(key):
        if (error := next(errors, None)) is not None:
            raise error

    other.readers[0].before = fail
    other.leave()
    assert one.marks() == [-1, 3]
    assert log == []


def a_handover_that_fails():
    """It is tried again; at last the log says what is lost."""
    one, other = start_replicas()
    failures = []

    def fail(key):
        if key[0] == "hands over" and len(failures) < 2:
            failures.append(key)
            raise UNREACHABLE

    other.readers[0].before = fail
    other.leave()
    assert one.marks() == [-1, 3]
    assert len(failures) == 2
    assert log == []


def nobody_can_be_reached():
    """The log says what is lost; but not of others that have said that they end."""
    one, other = start_replicas()
    exit_handover.ANSWER_S = 0.1
    one.dies(other)
    other.leave()
    (line,) = log
    assert "task:0/device:CPU:0 may still need it" in line, line
    log.clear()
    one, other = start_replicas()
    one.leave()
    one.dies(other)
    other.leave()
    assert log == []


def no_time():
    """Nobody is asked, and no step is waited for."""
    os.environ["TF_FUSE_EXIT_WAIT_S"] = "0"
    _, other = start_replicas()
    other.exit_barrier.leave()
    other.exit_barrier.may_end(
        exit_handover.time.monotonic() + exit_handover.seconds_to_leave(True)
    )
    assert other.readers[0].asked == []
    assert log == []


def a_forked_child():
    """Its end is not that of the replica."""
    _, other = start_replicas()
    other.exit_barrier._pid += 1
    other.leave()
    other.leave(after_sigterm=True)
    assert other.readers[0].asked == []
    # Another thread of the parent may have been in a run, and holds the lock for ever.
    reader = Reader(other.all.peers)
    with reader._lock:
        reader._pid += 1
        reader.abandon()


def a_reader_that_another_thread_uses():
    """Who has little time does not wait for it without end."""
    reader = Reader(start_replicas()[0].all.peers, [1])
    with reader._lock:
        try:
            reader.run("key", lambda: None, 0.01)
        except tf.errors.DeadlineExceededError as error:
            assert "device:CPU:1'] longer than 0.01 s" in error.message, error
        else:
            raise AssertionError


def an_exception():
    """Others may end by it later: they are not waited for."""
    exit_handover._GRACE_S = 1e9
    sys.last_value = ValueError("on purpose")
    one, other = start_replicas()
    other.leave()
    assert one.marks() == [-1, 3]


def three_replicas():
    """Who leaves later in a step knows from the first one that nobody has changed a part."""
    one, other, third = start_replicas(3)
    third.leave()
    assert one.marks() == [-1, -1, 3]
    one.fail()
    other.fail()
    third.dies(one, other)
    other.leave()
    assert one.marks() == [-1, -5, 3]
    other.dies(one)
    one.lose(1, 2)
    assert one.read() == [3.0]
    # It does not ask those first that have left.
    asked = len(one.all.asked)
    one.shard_group.is_sharded = True
    assert one.read() == [3.0]
    assert len(one.all.asked) == asked + 1
    assert inherited_name("scope", 0, 1) == "scope/0/of/1"


def all_are_asked_at_once():
    """So a task that does not answer does not take the others' time."""
    one, other, third = start_replicas(3)
    both = threading.Barrier(2, timeout=60)

    def wait(key):
        if key[0] == "exiting" and not both.broken and both.n_waiting < 2 and len(met) < 2:
            met.append(key)
            both.wait()

    met = []
    for reader in third.readers.values():
        reader.before = wait
    third.leave()
    assert len(met) == 2
    assert one.marks() == [-1, -1, 3]
    assert other.marks() == [-1, -1, -1]


def a_handler_of_sigterm_that_is_set_later():
    """Another thread hears of the signal all the same, from the next step on."""
    one, other = start_replicas(steps=2)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    one.step()
    other.step()
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(2):
        assert "has had a SIGTERM; what others need" in logged.get(timeout=60)
    assert one.marks() == [3, 3]  # Its own came back with the other one's.
    assert other.marks() == [3, -1]


if __name__ == "__main__":
    # What others answer is seen at once here.
    exit_handover._GRACE_S = exit_handover._STEP_S = 0
    assert handover_protocol.ANSWER_S == exit_handover.ANSWER_S == 5
    logging.getLogger("tf_fuse").addHandler(Handler(logging.WARNING))
    logging.getLogger("tf_fuse").propagate = False
    for name in sys.argv[1:]:
        globals()[name]()
        log.clear()
        sys.last_value = None
        print(name, flush=True)
    os._exit(0)  # The replicas have left.
