# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The stand-in for netem: when packets arrive, and which do not; the clock is the test's."""

from benchmarks.fuse_recv import network
from examples import tun_relay


def _arrivals(link, until, step):
    """The packets by the time at which they arrive."""
    times = {}
    for i in range(round(until / step) + 1):
        for packet in link.leave(i * step):
            times[packet] = i * step
    return times


def test_without_anything_packets_pass_at_once():
    link = tun_relay.Link()
    link.enter(b"a", 1.0)
    assert link.next_at() == 1.0
    assert link.leave(1.0) == [b"a"]
    assert link.next_at() is None


def test_delay():
    link = tun_relay.Link(delay_s=0.25)
    link.enter(b"a", 0.0)
    link.enter(b"b", 0.125)
    assert link.leave(0.2) == []
    assert link.leave(0.25) == [b"a"]
    assert link.next_at() == 0.375


def test_rate_and_delay_keep_the_order():
    link = tun_relay.Link(delay_s=0.5, bytes_per_s=1000)
    for name in (b"a", b"b", b"c"):
        link.enter(name * 250, 0.0)
    # A quarter of a second each, one after the other, and then the delay.
    assert _arrivals(link, 2, 0.25) == {b"a" * 250: 0.75, b"b" * 250: 1.0, b"c" * 250: 1.25}


def test_what_the_queue_cannot_hold_is_dropped():
    link = tun_relay.Link(bytes_per_s=1000)
    packet = bytes(1 << 20)
    for _ in range(8):
        link.enter(packet, 0.0)
    # The queue may hold 4 MiB when a packet comes, which is then taken whole.
    assert link.dropped == 3


def test_loss_is_as_often_as_asked_for():
    link = tun_relay.Link(loss=0.1)
    for _ in range(10_000):
        link.enter(b"a", 0.0)
    assert len(link.leave(0.0)) == 10_000 - link.dropped
    assert 900 <= link.dropped <= 1100  # the seed is fixed: the same number each time


def test_rounds_of_a_condition_follow_each_other_and_the_first_does_not_count():
    assert [network.condition_of(number, 2) for number in range(7)] == [
        (0, False), (0, True), (0, True), (1, False), (1, True), (1, True), (2, False),
    ]  # fmt: skip


def test_the_table_goes_between_its_marks(tmp_path):
    document = tmp_path / "a.md"
    document.write_text("before\n<!-- network -->\nold\n<!-- /network -->\nafter\n")
    network.put_into(document, "new\n")
    network.put_into(document, "newer\n")
    assert document.read_text() == ("before\n<!-- network -->\nnewer\n<!-- /network -->\nafter\n")
    network.put_into(tmp_path / "b.md", "new\n")
    assert (tmp_path / "b.md").read_text() == "new\n"
