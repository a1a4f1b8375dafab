# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Planners and tools start fast: `import tf_fuse.layout` waits with TensorFlow, and needs none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.slow_cases import slow

ROOT = Path(__file__).resolve().parents[3]
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
PLANNED = """
from tf_fuse.layout import optimize
from tf_fuse.layout.optimize.graph_problem import problem_of
from tf_fuse.layout.types.operation import Operation, Tensor
mesh = layout.Mesh((2,), ("x",))
layer = Operation("y", "MatMul", [Tensor("x", (64, 8)), Tensor("w", (8, 8), parameter=True)],
                  [Tensor("y", (64, 8))])
found = optimize.search(problem_of([layer], layout.assumed_rates(mesh)).problem)
"""


def _run(env: dict[str, str], *lines: str):
    """What a program prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], check=False, capture_output=True, text=True,
        env={**env, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), forking.VARIABLE: "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_import_brings_no_tensorflow(isolated_env):
    for line in (
        "import tf_fuse.layout",
        "from tf_fuse.layout import optimize, plan",
        "from tf_fuse import layout",
        "def function():\n    from tf_fuse import layout as l\n    return l\nfunction().Mesh",
    ):
        found = _run(
            isolated_env, line, "import json, sys",
            "heavy = {'tensorflow', 'google', 'keras', 'rich', 'scipy'}",
            "print(json.dumps(sorted(heavy & set(sys.modules))))",
        )  # fmt: skip
        assert found == []


def test_planning_where_no_tensorflow_is(isolated_env):
    found = _run(
        isolated_env, WITHOUT, "import json", "import tf_fuse.layout as layout", PLANNED,
        "def said(call):",
        "    try: call()",
        "    except ModuleNotFoundError as error: return error.name",
        "trace = said(lambda: layout.plan(lambda x: x, mesh))",
        "print(json.dumps([found.method, trace, said(lambda: layout.constrain)]))",
    )  # fmt: skip
    assert found == ["elimination", "tensorflow", "tensorflow"]


# Programs that import TensorFlow first, or by a name that needs it.
ORDERS = [
    ["import tensorflow", "import tf_fuse.layout"],
    ["from tf_fuse import layout, metrics", "assert metrics() != {}"],
]
MORE_NAMES = [
    ["import tf_fuse.layout, tf_fuse", "tf_fuse.collectives"],
    ["import tf_fuse.layout, tf_fuse", "tf_fuse.layout.constrain"],
]


@pytest.mark.parametrize("programs", [ORDERS, slow(MORE_NAMES)])
def test_tensorflow_brings_the_plugin(isolated_env, programs):
    """Whoever imports it, first or later; and its module is loaded by its own loader."""
    later = _run(
        isolated_env, "import json, sys", "from tf_fuse import layout", "import tf_fuse",
        "before = tf_fuse.__version__", "import tensorflow as tf",
        "from tf_fuse._importing import with_tensorflow as starts",
        "ours = any(isinstance(one, starts._Finder) for one in sys.meta_path)",
        "loader = type(tf.__spec__.loader).__name__",
        "print(json.dumps([before, tf_fuse.__version__, loader, ours, tf_fuse.metrics() != {}]))",
    )  # fmt: skip
    assert later[0] == "unknown" and later[1][0].isdigit()
    assert later[2:] == ["SourceFileLoader", False, True]
    for lines in programs:
        found = _run(isolated_env, *lines, "import json, tf_fuse",
                     "print(json.dumps(tf_fuse.__version__))")  # fmt: skip
        assert found == later[1]


def test_a_library_that_does_not_fit_leaves_tensorflow_usable(isolated_env):
    found = _run(
        isolated_env, "import json, warnings", "import tf_fuse.layout", "import tf_fuse",
        "def fails(): raise tf_fuse.LibraryMissingError('it is missing')",
        "tf_fuse._native.load = fails",
        "with warnings.catch_warnings(record=True) as caught:",
        "    warnings.simplefilter('always')",
        "    import tensorflow as tf",
        "print(json.dumps([[str(one.message) for one in caught if 'tf_fuse' in str(one.message)],",
        "                  int(tf.constant(3))]))",
    )  # fmt: skip
    assert found == [["tf_fuse plans layouts only: it is missing"], 3]
