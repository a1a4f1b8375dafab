# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `import tf_fuse` imports, what waits for its first use, and how the commands start."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tf_fuse
from tests import forking
from tf_fuse import __main__ as commands

_ROOT = Path(__file__).resolve().parents[2]


def _modules(env: dict[str, str], program: str) -> set[str]:
    """Run a program; return the modules of the package that it has then."""
    result = Path(env["HOME"]) / "modules.json"
    code = (
        f"{program}\nimport json, pathlib, sys\n"
        f"pathlib.Path({str(result)!r}).write_text(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "PYTHONPATH": os.pathsep.join(sys.path), forking.VARIABLE: "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = json.loads(result.read_text())
    return {name for name in names if name.startswith("tf_fuse.")}


def test_import_leaves_out_what_options_and_attributes_bring(isolated_env):
    loaded = _modules(isolated_env, "import tensorflow, tf_fuse")
    assert {name.split(".")[1] for name in loaded} == {
        "_importing",
        "_log",
        "_native",
        "_patching",
        "_removed_variables",
        "_tensorflow",
        "collectives",
        "monitoring",
        "options",
        "sessions",
        "sharded_variable",
        "shard_update",
    }
    assert {
        name for name in loaded if name.startswith(("tf_fuse.shard", "tf_fuse.monitoring"))
    } == {
        "tf_fuse.monitoring",
        "tf_fuse.monitoring.metrics",
        "tf_fuse.monitoring.tasks",
        "tf_fuse.monitoring.waiting",
        "tf_fuse.shard_update",
        "tf_fuse.shard_update.runtime",
        "tf_fuse.shard_update.runtime.dataset_captures",
        "tf_fuse.shard_update.runtime.strategy_variables",
        "tf_fuse.shard_update.traced_functions",
        "tf_fuse.sharded_variable",
        "tf_fuse.sharded_variable.handle_access",
        "tf_fuse.sharded_variable.named_variables",
    }


@pytest.mark.parametrize("name", ["layout", "parameter_server"])
def test_a_folder_is_imported_with_its_attribute(isolated_env, name):
    loaded = _modules(isolated_env, f"import tf_fuse\nassert tf_fuse.{name}.plan")
    assert f"tf_fuse.{name}" in loaded
    assert "tf_fuse.cli" not in loaded


def test_each_public_name_is_there():
    assert set(tf_fuse.__all__) <= set(dir(tf_fuse))
    for name in tf_fuse.__all__:
        assert getattr(tf_fuse, name) is getattr(tf_fuse, name)
    assert set(tf_fuse._LAZY_MODULES) | set(tf_fuse._LAZY_NAMES) <= set(tf_fuse.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'tf_fuse' has no attribute 'layuot'"):
        tf_fuse.layuot  # noqa: B018


def test_the_script_is_the_command_of_the_package():
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"tf-fuse": "tf_fuse.__main__:main"}
    assert callable(commands.main)


# As pip writes it for an entry point.
_SCRIPT = "import sys\nfrom tf_fuse.__main__ import main\nsys.argv[0] = 'tf-fuse'\nsys.exit(main())"


def test_the_script_and_the_module_print_the_same(isolated_env):
    env = {**isolated_env, "PYTHONPATH": os.pathsep.join(sys.path), forking.VARIABLE: "0"}
    starts = (["-m", "tf_fuse"], ["-c", _SCRIPT])
    done = [
        subprocess.run(
            [sys.executable, *start, "--help"], env=env, capture_output=True, text=True, check=False
        )
        for start in starts
    ]
    assert [one.returncode for one in done] == [0, 0]
    assert done[0].stdout == done[1].stdout
    assert "usage: tf-fuse " in done[0].stdout
