# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""TF_CONFIG as the server entry reads it, its exit statuses, and the arguments of LocalCluster."""

import json
import os
import socket
import subprocess
import sys
import types

import pytest

from examples import standalone
from tests import scripted

cluster = standalone.cluster_package()
serve = sys.modules[f"{cluster.__name__}.serve"]
local_cluster = sys.modules[f"{cluster.__name__}.local_cluster"]
HeldPorts = sys.modules[f"{cluster.__name__}.ports"].HeldPorts

_TASKS = ["localhost:1", "localhost:2"]
_CLUSTER = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}


def _config(**changes):
    return json.dumps({"cluster": _CLUSTER, "task": {"type": "ps", "index": 0}, **changes})


def test_parse():
    config = serve.parse_tf_config(_config(rpc_layer="grpc+fuse"))
    assert config.cluster == {"worker": {0: "a:1", 1: "b:2"}, "ps": {0: "c:3"}}
    assert (config.name, config.address, config.port) == ("ps:0", "c:3", 3)
    assert config.protocol == "grpc+fuse"
    assert serve.parse_tf_config(_config()).protocol == "grpc"


def test_parse_sparse_cluster_and_text_index():
    config = serve.parse_tf_config(
        _config(cluster={"worker": {"3": "[::1]:9"}}, task={"type": "worker", "index": "3"})
    )
    assert (config.name, config.address, config.port) == ("worker:3", "[::1]:9", 9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "TF_CONFIG is not set; expected something like TF_CONFIG='{"),
        (" ", "TF_CONFIG is not set; expected something like TF_CONFIG='{"),
        ("{", "TF_CONFIG is not JSON: Expecting property name enclosed in double quotes: line 1 "),
        ("[1]", "TF_CONFIG must be a JSON object, found list"),
        ("{}", 'TF_CONFIG["cluster"] must be an object of job name to addresses, found null'),
        (
            _config(cluster={"ps": "c:3"}),
            'TF_CONFIG["cluster"]["ps"] must be a list of "host:port", found "c:3"',
        ),
        (
            _config(cluster={"ps": ["c"]}),
            'TF_CONFIG["cluster"]["ps"][0] must be "host:port" with a port from 1 to 65535, '
            "found 'c'",
        ),
        (
            _config(cluster={"ps": ["c:65536"]}),
            'TF_CONFIG["cluster"]["ps"][0] must be "host:port" with a port from 1 to 65535, '
            "found 'c:65536'",
        ),
        (
            _config(task=None),
            'TF_CONFIG["task"] must be {"type": JOB, "index": NUMBER}, found null',
        ),
        (
            _config(task={"type": "chief", "index": 0}),
            'TF_CONFIG["task"]["type"] is \'chief\', but TF_CONFIG["cluster"] has the jobs '
            "['ps', 'worker']",
        ),
        (
            _config(task={"type": "worker", "index": 2}),
            'TF_CONFIG["task"]["index"] is 2, but TF_CONFIG["cluster"]["worker"] has the indices '
            "[0, 1]",
        ),
        (
            _config(task={"type": "worker", "index": True}),
            'TF_CONFIG["task"]["index"] must be a whole number, found True',
        ),
        (_config(rpc_layer=3), 'TF_CONFIG["rpc_layer"] must be a string, found 3'),
    ],
)
def test_parse_errors(text, expected):
    with pytest.raises(serve.ConfigError) as caught:
        serve.parse_tf_config(text)
    assert str(caught.value).startswith(expected)


def _run_by_path(tf_config):
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    if tf_config is not None:
        env["TF_CONFIG"] = tf_config
    return subprocess.run(
        [sys.executable, serve.__file__], env=env, capture_output=True, text=True, check=False
    )


def test_run_by_path_without_config():
    done = _run_by_path(None)
    assert done.returncode == serve.EXIT_CONFIG
    assert done.stderr.startswith("tf_fuse serve: error: TF_CONFIG is not set; expected")


def test_port_in_use_is_told_with_task_and_port():
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        done = _run_by_path(
            json.dumps(
                {
                    "cluster": {"ps": [f"localhost:{port}"]},
                    "task": {"type": "ps", "index": 0},
                }
            )
        )
    assert done.returncode == serve.EXIT_PORT_IN_USE
    assert done.stderr == (
        f"tf_fuse serve: error: port {port} of task ps:0 (address localhost:{port}) is in use by "
        "another process on this machine; stop that process or give the task another port in "
        'TF_CONFIG["cluster"] of every task\n'
    )


def test_held_ports_are_distinct_and_for_one_listener():
    with HeldPorts(20) as held:
        assert len(set(held.numbers)) == 20
        for port in held.numbers:
            config = serve.TaskConfig({"ps": {0: f"localhost:{port}"}}, "ps", 0, "grpc")
            serve.check_port(config)
            with socket.create_server(("localhost", port)), pytest.raises(serve.PortInUseError):
                serve.check_port(config)
            # As one that the system chooses: whoever does not know of the port.
            with socket.socket() as other, pytest.raises(OSError, match="already in use"):
                other.bind(("localhost", port))
    with socket.socket() as other:
        other.bind(("localhost", held.numbers[0]))


@pytest.mark.parametrize(
    ("job", "index", "expected"), [("worker", 1, "b"), ("worker", 0, "a"), ("ps", 0, "c")]
)
def test_protocol_per_task(job, index, expected):
    protocols = {"worker": "a", "worker:1": "b", "ps": "c"}
    assert local_cluster._protocol_of(protocols, job, index) == expected
    assert local_cluster._protocol_of("d", job, index) == "d"


def test_missing_protocol_names_task_and_typing_errors():
    with pytest.raises(ValueError) as caught:
        cluster.LocalCluster(workers=1, ps=1, protocol={"worker": "grpc", "pss": "grpc"})
    assert str(caught.value) == (
        "no protocol for ps:0: give one for 'ps:0' or for 'ps'; got {'worker': 'grpc', "
        "'pss': 'grpc'}, where ['pss'] name no task"
    )


def test_environment_for_a_task_that_is_none():
    with pytest.raises(ValueError) as caught:
        cluster.LocalCluster(1, 1, "grpc", task_env={"ps:1": {"A": "1"}, "ps": {}})
    assert str(caught.value) == "task_env names ['ps:1']; this cluster has ['worker:0', 'ps:0']"


def test_cluster_without_workers():
    with pytest.raises(ValueError, match="workers >= 1 and ps >= 0, got workers=0 and ps=1"):
        cluster.LocalCluster(workers=0)


def test_importing_the_cluster_needs_no_tensorflow():
    code = (
        "import sys; from examples import standalone; from tests import scripted; "
        "standalone.cluster_package(); "
        "scripted.give(sorted({'tensorflow', 'tf_fuse'} & set(sys.modules)))"
    )
    assert scripted.result_of([sys.executable, "-c", code], cwd=scripted.ROOT) == []


def test_functions_are_not_removed_from_tasks_that_have_ended(monkeypatch):
    # TensorFlow would call each of them, and log five lines for each that does not answer.
    from tf_fuse._tensorflow import feature_names, features
    from tf_fuse._tensorflow.eager import function_calls

    def server_def(addresses):
        job = types.SimpleNamespace(tasks=dict(enumerate(addresses)))
        return types.SimpleNamespace(cluster=types.SimpleNamespace(job=[job]))

    removed, forgotten = [], []
    context = types.SimpleNamespace(
        _server_def=server_def(_TASKS),
        remove_function=removed.append,
        list_function_names=lambda: {"a", "b", "c"},
    )
    monkeypatch.setattr(function_calls, "_forgets", [lambda _, name: forgotten.append(name)])
    monkeypatch.setitem(features._known, feature_names.LOCAL_CLUSTER, True)
    module = types.SimpleNamespace(_context=context)
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", module)
    local_cluster._forget_tasks({"localhost:3"})  # of another cluster
    context.remove_function("a")
    assert removed == ["a"]
    local_cluster._forget_tasks({"localhost:2", "localhost:3"})
    local_cluster._forget_tasks({"localhost:2", "localhost:3"})
    context.remove_function("b")
    assert (removed, forgotten) == (["a"], [b"b"])
    context.remove_function(b"traced later")
    assert (removed, forgotten) == (["a", b"traced later"], [b"b"])
    context._server_def = server_def(["localhost:4"])
    context.remove_function("c")
    assert removed == ["a", b"traced later", "c", "b"]
    module._context = None
    local_cluster._forget_tasks({"localhost:4"})
