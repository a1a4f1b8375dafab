# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks that serve metrics and profiles: what Prometheus and TensorFlow's profiler see of them."""

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_CHIEF = "/job:chief/replica:0/task:0"
_PS = "/job:ps/replica:0/task:0"
_WORKER = "/job:worker/replica:0/task:0"
_STEPS = 3
_SLOTS = 6
_XPROF = """import sys; from xprof.convert import raw_to_tool_data as convert
print(convert.xspace_to_tool_data(sys.argv[1:], "trace_viewer", {})[0])"""
_LATE = {"waits_for_pipe"}


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


def test_metrics_over_http(cases):
    case = cases["scrape"]
    assert case["url"].startswith("http://127.0.0.1:")
    (sent,) = [
        sample.value
        for family in text_string_to_metric_families(case["text"])
        for sample in family.samples
        if sample.name == "tf_fuse_frames_total"
        and sample.labels == {"task": _PS, "direction": "sent"}
    ]
    assert sent == case["served_rpcs"] > 0


def test_metrics_of_the_cluster(cases):
    samples = [
        sample
        for family in text_string_to_metric_families(cases["cluster_text"])
        for sample in family.samples
        if sample.name == "tf_fuse_up"
    ]
    assert {s.labels["task"]: s.value for s in samples} == {_CHIEF: 1.0, _PS: 1.0, _WORKER: 1.0}


def test_one_event_per_fused_receive(cases):
    case = cases["own_profile"]
    events = case["events"]
    assert len(events) == case["fused_rpcs"] == _STEPS
    assert {e["line"] for e in events} == {f"from {_PS}"}
    assert {e["peer"] for e in events} == {_PS}
    assert {e["slots"] for e in events} == {_SLOTS}
    assert sum(e["bytes"] for e in events) == case["bytes"]
    assert len({e["step_id"] for e in events}) == _STEPS
    for event in events:
        waits = [int(wait) for wait in event["waits_us"].split(",")]
        names = event["tensor_names"].split(",")
        assert len(waits) == len(names) == _SLOTS and min(waits) >= 0
        assert event["slowest_wait_us"] == max(waits)
        assert event["slowest_tensor"] == names[waits.index(max(waits))]
        assert "error" not in event


def test_the_slowest_sender_is_visible(cases):
    (event,) = cases["late_profile"]["events"]
    waits = [int(wait) for wait in event["waits_us"].split(",")]
    waits_of = dict(zip(event["tensor_names"].split(","), waits, strict=True))
    late = {n for n in waits_of if n.split("_", 2)[2] in _LATE}
    assert len(late) == 1
    # They came after all others had been seen to be there.
    assert min(waits_of[n] for n in late) > max(w for n, w in waits_of.items() if n not in late)
    assert event["slowest_tensor"] in late


def test_profiles_of_other_tasks_show_both_sides(cases):
    received, served = cases["remote"]["worker"], cases["remote"]["ps"]
    assert {(e["line"], e["peer"], e["slots"]) for e in received} == {(f"from {_PS}", _PS, _SLOTS)}
    assert {(e["line"], e["peer"], e["slots"]) for e in served} == {
        (f"to {_WORKER}", _WORKER, _SLOTS)
    }
    assert {e["name"] for e in received} == {f"fused receive of {_SLOTS} tensors"}
    assert {e["name"] for e in served} == {f"serve {_SLOTS} tensors"}
    # Of a step that both have in their profiles, both name the same.
    by_step = {e["step_id"]: e for e in served}
    common = [(e, by_step[e["step_id"]]) for e in received if e["step_id"] in by_step]
    assert common
    for at_worker, at_ps in common:
        assert at_worker["tensor_names"] == at_ps["tensor_names"]
        if "waits_us" in at_worker:
            assert at_worker["bytes"] == at_ps["bytes"]


def test_one_event_per_dynamic_request(cases):
    case = cases["dynamic_profile"]
    events = case["events"]
    assert len(events) == case["dynamic_requests"] == case["fused_rpcs"] >= _STEPS
    assert {e["line"].split(" (")[0] for e in events} == {f"from {_PS}"}
    assert sum(e["bytes"] for e in events) == case["bytes"]
    for step_id in {e["step_id"] for e in events}:
        of_step = [e for e in events if e["step_id"] == step_id]
        names = [name for e in of_step for name in e["tensor_names"].split(",")]
        # An event has what its answer brought; each tensor comes once.
        assert len(names) == len(set(names)) == _SLOTS
    for event in events:
        waits = [int(wait) for wait in event["waits_us"].split(",")]
        assert len(waits) == event["slots"] == len(event["tensor_names"].split(","))
        assert min(waits) >= 0
        assert event["slowest_wait_us"] == max(waits)
        assert "error" not in event


def test_dynamic_events_of_other_tasks(cases):
    case = cases["remote_dynamic"]
    assert case["ps"] and case["worker"]
    for side, peer in (("ps", _WORKER), ("worker", _PS)):
        assert {e["peer"] for e in case[side]} == {peer}
        for event in case[side]:
            assert event["slots"] == len(event["tensor_names"].split(","))
            if "waits_us" in event:
                assert len(event["waits_us"].split(",")) == event["slots"]
    # What one answer brought has the same names on both sides.
    served = {(e["step_id"], e["tensor_names"]) for e in case["ps"]}
    received = {(e["step_id"], e["tensor_names"]) for e in case["worker"]}
    assert served & received


def test_trace_viewer_shows_the_events(cases):
    assert cases["viewer"] == {
        "ok": True,
        "events": _STEPS,
        "args": [
            "bytes",
            "peer",
            "slots",
            "slowest_tensor",
            "slowest_wait_us",
            "step_id",
            "tensor_names",
            "waits_us",
        ],
    }


def test_xprof_shows_the_events(cases):
    if not cases["xprof"]:
        pytest.skip("xprof is not installed; it is in the extra viewers")
    of_plane = {"name": "/device:CUSTOM:tf_fuse"}
    (process,) = [one["pid"] for one in cases["xprof"] if one.get("args") == of_plane]
    shown = [one for one in cases["xprof"] if one.get("ph") == "X" and one["pid"] == process]
    assert [{"name": one["name"], **one["args"]} for one in shown] == [
        {key: str(value) for key, value in event.items() if key != "line"}
        for event in cases["own_profile"]["events"]
    ]


def test_nothing_is_traced_afterwards(cases):
    # Without a profile, no request asks for waits: the frames are as small as before.
    assert cases["afterwards"]["bytes"] < cases["own_profile"]["bytes"]
    assert cases["afterwards"]["bytes"] == cases["before"]["bytes"]


def _main():
    import importlib.util
    import os
    import subprocess
    import sys
    import tempfile
    import threading
    import urllib.request
    from pathlib import Path

    import tensorflow as tf
    from tensorflow.python.profiler.internal import _pywrap_profiler_plugin
    from tensorflow.tsl.profiler.protobuf import trace_events_pb2, xplane_pb2

    import tf_fuse
    from tf_fuse.cluster.ports import HeldPorts

    temporary = tempfile.TemporaryDirectory()
    folder = Path(temporary.name)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    held = HeldPorts(4)
    ports = held.numbers
    addresses = {"worker": [f"localhost:{ports[0]}"], "ps": [f"localhost:{ports[1]}"]}
    profiler_ports = {"worker": ports[2], "ps": ports[3]}

    def start(job):
        config = {
            "cluster": addresses,
            "task": {"type": job, "index": 0},
            "rpc_layer": "grpc+fuse",
        }
        options = ["--metrics-port", "0", "--profiler-port", str(profiler_ports[job])]
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "tf_fuse", "run", *options],
            env={**os.environ, "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ready(process):
        """The URL of its metrics, once it is ready."""
        url = None
        for line in process.stdout:
            if "metrics at " in line:
                url = line.split("metrics at ")[1].strip()
            if "serve: ready" in line:
                return url
        raise RuntimeError(f"a task ended with status {process.wait()}")

    tasks = {job: start(job) for job in addresses}
    try:
        urls = {job: ready(process) for job, process in tasks.items()}
        tf.config.optimizer.set_experimental_options(
            {"do_fuse_recv": True, "fuse_grouping": "level"}
        )
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(addresses), rpc_layer="grpc+fuse"
            )
        )
        with tf.device(_PS):
            variables = [tf.Variable(float(i)) for i in range(5)]
            last = tf.Variable(7.0)

        def make(output):
            @tf.function
            def read():
                total = tf.add_n([v.read_value() for v in variables])
                with tf.device(_PS):
                    # Opening a named pipe waits until somebody reads from it.
                    printed = tf.print("here", output_stream=output)
                    with tf.control_dependencies([printed]):
                        late = tf.square(last.read_value(), name="waits_for_pipe")
                return total + late

            return read

        functions = {"quick": make(f"file://{folder / 'file'}")}
        slow = make(f"file://{pipe}")

        def call(function, task):
            with tf.device(task):
                return float(function())

        def own_counters(action):
            before = tf_fuse.metrics()
            action()
            after = tf_fuse.metrics()
            names = ("fused_rpcs", "dynamic_requests", "bytes")
            return {name: after[name] - before[name] for name in names}

        def events_of(logdir):
            """The events of our plane in the one profile under a folder."""
            (path,) = Path(logdir).rglob("*.xplane.pb")
            space = xplane_pb2.XSpace.FromString(path.read_bytes())
            planes = [plane for plane in space.planes if plane.name == "/device:CUSTOM:tf_fuse"]
            events = []
            for plane in planes:
                for line in plane.lines:
                    for event in line.events:
                        metadata = plane.event_metadata[event.metadata_id]
                        stats = {"line": line.name, "name": metadata.name}
                        for stat in [*metadata.stats, *event.stats]:
                            key = plane.stat_metadata[stat.metadata_id].name
                            stats[key] = getattr(stat, stat.WhichOneof("value"))
                        events.append(stats)
            return events

        def steps():
            for _ in range(_STEPS):
                call(functions["quick"], _CHIEF)

        def profiled(name, action):
            logdir = str(folder / name)
            tf.profiler.experimental.start(logdir)
            action()
            tf.profiler.experimental.stop()
            return logdir

        def own_profile():
            logdir = []
            counters = own_counters(lambda: logdir.append(profiled("own", steps)))
            return {"events": events_of(logdir[0]), **counters}

        def late():
            thread = threading.Thread(target=call, args=(slow, _CHIEF))
            thread.start()

            def two_are_missing():
                waiting = tf_fuse.cluster_waiting()[_PS] or []
                return [w["missing"] for w in waiting] == [2]

            coordinator.wait_until(two_are_missing, 60)
            with open(pipe) as file:
                file.read()
            thread.join()

        def dynamic_profile():
            """As own_profile(), of a function that was traced with fuse_grouping="dynamic"."""
            options = tf.config.optimizer.set_experimental_options
            options({"fuse_grouping": "dynamic"})
            functions["quick"] = make(f"file://{folder / 'file'}")
            call(functions["quick"], _CHIEF)
            call(functions["quick"], _WORKER)
            logdir = []
            counters = own_counters(lambda: logdir.append(profiled("dynamic", steps)))
            return {"events": events_of(logdir[0]), **counters}

        def remote_both(name="remote"):
            """Both tasks at once, so that they see the same steps."""
            logdir = str(folder / name)
            ended = threading.Event()

            def run():
                while not ended.is_set():
                    call(functions["quick"], _WORKER)

            thread = threading.Thread(target=run)
            thread.start()
            services = ",".join(f"grpc://localhost:{port}" for port in profiler_ports.values())
            tf.profiler.experimental.client.trace(services, logdir, duration_ms=1000)
            ended.set()
            thread.join()
            by_task = {}
            for job, port in profiler_ports.items():
                (path,) = [p for p in Path(logdir).rglob("*.xplane.pb") if str(port) in p.name]
                alone = folder / f"{name}_of_{job}"
                alone.mkdir()
                path.rename(alone / path.name)
                by_task[job] = events_of(alone)
            return by_task

        def viewer():
            (path,) = (folder / "own").rglob("*.xplane.pb")
            data, ok = _pywrap_profiler_plugin.xspace_to_tools_data([str(path)], "trace_viewer", {})
            events = [
                e
                for e in trace_events_pb2.Trace.FromString(data).trace_events
                if e.name == f"fused receive of {_SLOTS} tensors"
            ]
            return {
                "events": len(events),
                "args": sorted({name for e in events for name in e.args}),
                "ok": ok,
            }

        def xprof():
            if importlib.util.find_spec("xprof") is None:
                return []
            command = [sys.executable, "-c", _XPROF, *(folder / "own").rglob("*.xplane.pb")]
            return json.loads(subprocess.check_output(command))["traceEvents"]

        def scrape():
            with urllib.request.urlopen(urls["ps"]) as answer:
                text = answer.read().decode()
            counters = tf_fuse.cluster_metrics()[_PS]
            return {"url": urls["ps"], "text": text, "served_rpcs": counters["served_rpcs"]}

        def clean_up():
            # The process leaves by os._exit, which ends nothing and removes nothing.
            for process in tasks.values():
                process.kill()
            temporary.cleanup()
            return strategy is not None

        steps()
        call(functions["quick"], _WORKER)
        coordinator.finish(
            {
                "before": lambda: own_counters(steps),
                "own_profile": own_profile,
                "viewer": viewer,
                "xprof": xprof,
                "late_profile": lambda: {"events": events_of(profiled("late", late))},
                "remote": remote_both,
                "afterwards": lambda: own_counters(steps),
                "dynamic_profile": dynamic_profile,
                "remote_dynamic": lambda: remote_both("remote_dynamic"),
                "scrape": scrape,
                "cluster_text": lambda: tf_fuse.prometheus_text(cluster=True),
                "clean_up": clean_up,
            }
        )
    finally:
        for process in tasks.values():
            process.kill()


if __name__ == "__main__":
    _main()
