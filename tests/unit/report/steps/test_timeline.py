# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Timelines of profiles that are made here: whole steps, waits, and critical paths."""

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests.unit.report.made_reports import PS, WORKER
from tf_fuse.report.records.model import Lane, Receive, Segment, Step, Transfer
from tf_fuse.report.steps.chrome_trace import trace_of
from tf_fuse.report.steps.critical_path import critical_path
from tf_fuse.report.steps.plane import PLANE, missing
from tf_fuse.report.steps.timeline import timeline_of

_START_NS = 1_700_000_000_000_000_000


class _Profile:
    """An XSpace in the form that a recorded task gives; times are microseconds.

    `begun_us` is when the task's profile began: TensorFlow makes the times of lines relative to it.
    """

    def __init__(self, begun_us=0):
        self.space = xplane_pb2.XSpace()
        self._begun_us = begun_us
        self._own = self.space.planes.add(name=PLANE)
        self._numbers = {}
        self._lines = {}
        self._add(self._own, begin_ns=_START_NS + 5000, has_busy_times=1, dropped_busy_times=0)

    def receive(self, direction, peer, step_id, names, start, end, size=100, **more):
        number = len(self._own.event_metadata) + 1
        metadata = self._own.event_metadata[number]
        self._add(metadata, tensor_names=",".join(names))
        event = self._event(f"{direction} {peer}", number, start, end)
        self._add(event, peer=peer, slots=len(names), bytes=size, step_id=step_id, **more)

    def busy(self, start, end):
        number = len(self._own.event_metadata) + 1
        self._own.event_metadata[number].name = "runs operations"
        self._event("operations", number, start, end)

    def stat(self, **stats):
        self._add(self._own, **stats)

    def _event(self, line_name, number, start, end):
        if line_name not in self._lines:
            self._lines[line_name] = self._own.lines.add(
                name=line_name, timestamp_ns=(5 - self._begun_us) * 1000
            )
        return self._lines[line_name].events.add(
            metadata_id=number,
            offset_ps=round((start - 5) * 1e6),
            duration_ps=round((end - start) * 1e6),
        )

    def _add(self, to, **stats):
        for name, value in stats.items():
            number = self._numbers.setdefault(name, len(self._numbers) + 1)
            self._own.stat_metadata[number].name = name
            stat = to.stats.add(metadata_id=number)
            if isinstance(value, str):
                stat.str_value = value
            else:
                stat.int64_value = value


def _profiles(steps=1, begun_us=(0, 0)):
    """Rows of a server to a worker, then a gradient back, in each of some steps."""
    worker, ps = map(_Profile, begun_us)
    for number in range(steps):
        at = 1000 * number
        more = {"slowest_tensor": "b", "slowest_wait_us": 300, "waits_us": "10,300"}
        worker.receive("from", PS, number + 7, ["a", "b"], at + 100, at + 500, **more)
        ps.receive("to", WORKER, number + 7, ["a", "b"], at + 120, at + 450, **more)
        # The gradient was there before the server asked.
        ready = {"slowest_tensor": "g", "slowest_wait_us": 0, "waits_us": "0"}
        ps.receive("from", WORKER, number + 7, ["g"], at + 700, at + 800, 40, **ready)
        worker.receive("to", PS, number + 7, ["g"], at + 720, at + 760, 40, **ready)
        worker.busy(at + 500, at + 700)
        ps.busy(at + 150, at + 400)
    return {WORKER: worker.space, PS: ps.space}


def test_a_step_with_waits_and_its_critical_path():
    timeline = timeline_of(_profiles())
    assert timeline.duration_us == 700.0
    # Times begin with the first request, at 100.
    assert timeline.lanes == (
        Lane(PS, ((50.0, 300.0),)),
        Lane(WORKER, ((400.0, 600.0),)),
    )
    assert timeline.transfers == (Transfer(PS, WORKER, ("a", "b")), Transfer(WORKER, PS, ("g",)))
    assert timeline.receives == (
        # The server had "b" 300 after it was asked, which was at 20.
        Receive(0, 0, 0.0, 320.0, 400.0, 100, "b", ""),
        Receive(1, 0, 600.0, 620.0, 700.0, 40, "g", ""),
    )
    (step,) = timeline.steps
    assert step == Step(
        WORKER,
        0.0,
        700.0,
        (
            Segment("compute", PS, "", "", 0.0, 320.0),
            Segment("transfer", PS, WORKER, "b", 320.0, 400.0),
            Segment("compute", WORKER, "", "", 400.0, 620.0),
            Segment("transfer", WORKER, PS, "g", 620.0, 700.0),
        ),
    )


def test_profiles_that_begin_at_other_times():
    """The tasks are asked at the same time, and begin when they come to it."""
    assert timeline_of(_profiles(begun_us=(2, 4000))) == timeline_of(_profiles())


def test_steps_that_were_under_way_at_begin_and_end_are_left_out():
    timeline = timeline_of(_profiles(steps=5))
    assert [(one.start_us, one.end_us) for one in timeline.steps] == [
        (0.0, 700.0), (1000.0, 1700.0), (2000.0, 2700.0),
    ]  # fmt: skip
    assert [one.step for one in timeline.receives] == [0, 0, 1, 1, 2, 2]
    assert timeline.duration_us == 2700.0


def test_at_most_twenty_steps_are_kept():
    timeline = timeline_of(_profiles(steps=40))
    assert len(timeline.steps) == 20
    assert len(timeline.receives) == 40


def test_profiles_without_receives_and_without_anything():
    worker = _Profile()
    worker.busy(10, 20)
    timeline = timeline_of({WORKER: worker.space})
    assert timeline.lanes == (Lane(WORKER, ((0.0, 10.0),)),)
    assert (timeline.steps, timeline.receives, timeline.duration_us) == ((), (), 10.0)
    empty = timeline_of({WORKER: xplane_pb2.XSpace()})
    assert (empty.lanes, empty.duration_us) == ((Lane(WORKER),), 0.0)


def test_a_profile_says_what_it_lacks():
    (text,) = missing(xplane_pb2.XSpace())
    assert text == "was not recorded: tf_fuse is missing there, or is older than here"
    whole = _Profile()
    assert list(missing(whole.space)) == []
    whole.stat(has_busy_times=0, dropped_busy_times=1234, dropped_events=5)
    assert list(missing(whole.space)) == [
        "has no times of its operations: something else collects what its threads run",
        "had no memory for 1,234 times of operations: record fewer seconds",
        "had no memory for 5 requests: record fewer seconds",
    ]


def test_a_task_that_was_not_recorded_has_an_empty_lane():
    profiles = _profiles()
    # Of TensorFlow's own profiler, which makes a plane for the task's host.
    profiles[PS] = xplane_pb2.XSpace()
    profiles[PS].planes.add(name="/host:CPU")
    timeline = timeline_of(profiles)
    assert timeline.lanes == (Lane(PS), Lane(WORKER))
    # What the worker has received from it is there.
    assert [one.start_us for one in timeline.receives] == [0.0]


def test_a_receive_whose_sender_was_not_recorded():
    worker = _Profile()
    worker.receive("from", PS, 7, ["a"], 100, 300)
    worker.receive("from", PS, 7, ["b"], 350, 400, error="Unavailable")
    timeline = timeline_of({WORKER: worker.space})
    assert timeline.receives == (
        Receive(0, 0, 0.0, None, 200.0, 100, "", ""),
        Receive(1, 0, 250.0, None, 300.0, 100, "", "Unavailable"),
    )
    assert timeline.steps[0].path == (
        Segment("request", PS, WORKER, "", 0.0, 200.0),
        Segment("compute", WORKER, "", "", 200.0, 250.0),
        Segment("request", PS, WORKER, "", 250.0, 300.0),
    )


def test_a_clock_that_is_wrong_moves_no_time_out_of_its_request():
    worker, ps = _Profile(), _Profile()
    more = {"slowest_tensor": "a", "slowest_wait_us": 50}
    worker.receive("from", PS, 7, ["a"], 100, 300, **more)
    ps.receive("to", WORKER, 7, ["a"], 100_100, 100_200, **more)
    (receive,) = timeline_of({WORKER: worker.space, PS: ps.space}).receives
    assert (receive.start_us, receive.ready_us, receive.end_us) == (0.0, 200.0, 200.0)


def test_a_path_has_no_gaps_and_ends_where_the_step_ends():
    transfers = [Transfer(PS, WORKER, ("a",)), Transfer(WORKER, PS, ("i",))]
    receives = [
        Receive(1, 0, 0.0, 30.0, 40.0),  # The ids.
        Receive(0, 0, 0.0, 90.0, 100.0),  # The rows, which wait for them.
        Receive(0, 0, 0.0, 20.0, 45.0),  # Others, in time.
    ]
    path = critical_path(receives, transfers, WORKER, 0.0, 130.0)
    assert [(one.kind, one.task, one.start_us, one.end_us) for one in path] == [
        ("compute", WORKER, 0.0, 30.0),
        ("transfer", WORKER, 30.0, 40.0),
        ("compute", PS, 40.0, 90.0),
        ("transfer", PS, 90.0, 100.0),
        ("compute", WORKER, 100.0, 130.0),
    ]


def test_the_trace_for_perfetto():
    events = trace_of(timeline_of(_profiles()))["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {1: "ps:0", 2: "worker:0"}
    slices = [
        (names[one["pid"]], one["tid"], one["name"], one["ts"], one["dur"])
        for one in events
        if one["ph"] == "X"
    ]
    assert slices == [
        ("ps:0", 0, "computes", 50.0, 250.0),
        ("worker:0", 0, "computes", 400.0, 200.0),
        ("worker:0", 2, "2 tensors of ps:0", 0.0, 400.0),
        ("ps:0", 2, "1 tensors of worker:0", 600.0, 100.0),
        ("ps:0", 1, "compute", 0.0, 320.0),
        ("ps:0", 1, "transfer", 320.0, 80.0),
        ("worker:0", 1, "compute", 400.0, 220.0),
        ("worker:0", 1, "transfer", 620.0, 80.0),
    ]
    arrows = [(one["ph"], names[one["pid"]], one["ts"]) for one in events if one["ph"] in "sf"]
    assert arrows == [
        ("s", "ps:0", 320.0), ("f", "worker:0", 400.0),
        ("s", "worker:0", 620.0), ("f", "ps:0", 700.0),
    ]  # fmt: skip


def test_requests_at_the_same_time_have_threads_of_their_own():
    worker = _Profile()
    for name, start, end in (("a", 0, 50), ("b", 10, 30), ("c", 30, 60), ("d", 50, 70)):
        worker.receive("from", PS, 7, [name], start + 100, end + 100)
    events = trace_of(timeline_of({WORKER: worker.space}))["traceEvents"]
    threads = [
        (one["args"]["tensors"], one["tid"]) for one in events if one.get("cat") == "receive"
    ]
    assert threads == [(["a"], 2), (["b"], 3), (["c"], 3), (["d"], 2)]
