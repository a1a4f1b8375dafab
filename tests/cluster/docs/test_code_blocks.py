# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each block of Python in docs/ runs, and its values are those that its comments tell.

A comment behind an expression that begins with a number, a tuple or a truth value is compared with
the value, and comment lines of a block that prints with what it printed.
"""

import ast
import contextlib
import io
import json
import re
import socket
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_VALUE = re.compile(r"(True|False|-?\d+|\(.*?\))(?:$|[,:])")

# Blocks with a test of their own.
_ELSEWHERE = {
    "tutorial.md": "test_tutorial.py",
}

_IMPORTS = "import tensorflow as tf\nimport tf_fuse\nimport tf_fuse.cluster\n"
_TWO_DEVICES = """
import tensorflow as tf
_cpus = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], _cpus)
import tf_fuse
"""
_ONE_MEMBER = """
import tensorflow as tf
import tf_fuse
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context

context.context().configure_collective_ops(collective_leader="/job:worker/replica:0/task:0")
context.context().enable_collective_ops(
    tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec({"worker": [ADDRESS]}).as_cluster_def(),
        job_name="worker",
        task_index=0,
        protocol="grpc+fuse",
        port=int(ADDRESS.rpartition(":")[2]),
        default_session_config=context.context().config,
    )
)
size, x = 1, tf.ones([4])
"""
_SERVERS = _IMPORTS + "resolver = tf_fuse.cluster.LocalCluster(workers=1, ps={}).resolver()\n"


def _blocks(page):
    return _BLOCK.findall((_ROOT / "docs" / page).read_text(encoding="utf-8"))


# Programs of a page: what goes before each block, None where it belongs to the program above. What
# is begun anew runs in a process of its own.
_PAGES = {
    "collectives.md": [
        _ONE_MEMBER,
        _TWO_DEVICES + "strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n"
        "with strategy.scope():\n  weight = tf.Variable(tf.ones([4, 3]))\n",
    ],
    "environment.md": [_IMPORTS],
    "fuse_recv.md": [
        _IMPORTS,
        "import tensorflow as tf\n@tf.function\ndef step(_):\n  return tf.ones([])\n",
    ],
    "keras.md": [_SERVERS.format(1), None],
    "layout.md": ["", None, None, None, None, "", None, None],
    "layout_search.md": [""],
    "report.md": [_IMPORTS],
    "parameter_server_updates.md": [
        _SERVERS.format(2) + "cluster_resolver = resolver\n",
    ],
    "parameter_servers.md": [
        _SERVERS.format(4),
        _IMPORTS + "tf.compat.v1.disable_eager_execution()\n"
        "cluster = tf.train.ClusterSpec({'ps': ['a:1', 'b:2'], 'worker': ['c:3']})\n"
        "def make_graph():\n"
        "  tf.compat.v1.get_variable('w', [300, 40])\n"
        "  tf.compat.v1.get_variable('v', [400, 30])\n",
    ],
    "sessions.md": [
        "import tensorflow as tf\ntf.compat.v1.disable_eager_execution()\n"
        "job_name, task_index = 'worker', 0\n"
        "cluster_spec = {'worker': [ADDRESS]}\n",
    ],
    "watching.md": [_SERVERS.format(1), "", ""],
    "weight_update.md": [""],
}

# Lines that need the reader's own machines, or take long, and what stands for them here.
_REPLACED = {
    ("layout.md", "ExecutionBench(pair))"): "ExecutionBench(pair), rounds=8)",
    ("watching.md", "9400"): "PORT",
    ("weight_update.md", "range(100)"): "range(2)",
}
_NOT_RUN = {
    ("watching.md", "tf.profiler.experimental.client.trace"): "traces the reader's own tasks",
}


def _programs(page):
    """The blocks of a page by process, each with what goes before it."""
    blocks, before = _blocks(page), _PAGES[page]
    assert len(blocks) == len(before)
    programs = []
    for text, setup in zip(blocks, before, strict=True):
        if any(name == page and part in text for name, part in _NOT_RUN):
            continue
        for (name, old), new in _REPLACED.items():
            text = text.replace(old, new) if name == page else text
        if setup is not None:
            programs.append([])
            programs[-1].append(setup)
        programs[-1].append(text)
    return programs


def test_each_page_with_code_is_here():
    pages = {
        path.name for path in (_ROOT / "docs").rglob("*.md") if _BLOCK.search(path.read_text())
    }
    assert pages == {*_PAGES, *_ELSEWHERE}


@pytest.mark.parametrize("page", _PAGES)
def test_blocks_run_and_give_what_they_say(page, isolated_env, tmp_path):
    from tests import scripted

    for number, program in enumerate(_programs(page)):
        (tmp_path / f"{number}.json").write_text(json.dumps(program))
        found = scripted.result_of(
            [sys.executable, __file__, str(tmp_path / f"{number}.json")], isolated_env, cwd=tmp_path
        )
        assert found["differ"] == []
        assert found["compared"] == sum(map(_compared, program[1:]))


def _compared(text):
    """How many values and outputs a block tells."""
    return len(_told(text)) + bool(_printed(text))


def _told(text):
    """What a block prints about its expressions: the value, by line."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        expression, _, comment = line.partition("  # ")
        value = _VALUE.match(comment)
        if value and not expression.startswith((" ", "#")) and "=" not in expression.split("==")[0]:
            found[number] = ast.literal_eval(value[1])
    return found


def _printed(text):
    lines = text.splitlines()
    if not any("print(" in line for line in lines):
        return []
    return " ".join(line[1:] for line in lines if line.startswith("# ")).split()


def _main(path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {"ADDRESS": f"127.0.0.1:{port}", "PORT": port, "__name__": "__main__"}
    differ, compared = [], 0
    for number, text in enumerate(json.loads(Path(path).read_text())):
        file = Path(f"{path}.{number}.py")  # (AutoGraph reads the source of functions.)
        file.write_text(text)
        told, output = _told(text), io.StringIO()
        with contextlib.redirect_stdout(output):
            for node in ast.parse(text).body:
                if isinstance(node, ast.Expr) and node.end_lineno in told:
                    compared += 1
                    value = eval(compile(ast.Expression(node.value), str(file), "eval"), names)
                    value = tuple(value) if isinstance(value, (list, tuple)) else value
                    if value != told[node.end_lineno]:
                        differ.append([ast.unparse(node), repr(value)])
                else:
                    exec(compile(ast.Module([node], []), str(file), "exec"), names)
        if printed := _printed(text):
            compared += 1
            if output.getvalue().split() != printed:
                differ.append(["print", output.getvalue()])
    from tests import scripted

    scripted.give({"differ": differ, "compared": compared})


if __name__ == "__main__":
    _main(sys.argv[1])
