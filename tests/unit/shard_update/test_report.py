# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the log says of a function, and who is named for putting values together."""

import os
import subprocess
import sys
from dataclasses import replace

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest

import tf_fuse
from tf_fuse.shard_update.decision import FUNCTION_REASONS, Decision
from tf_fuse.shard_update.plan import REASONS, Bucket, ShardedUpdate, UpdateCluster
from tf_fuse.shard_update.report import _function, print_weight_update_report, summary
from tf_fuse.sharded_variable.unshard import UnshardCounts


def _decision(*reasons, reason=None, detail=""):
    clusters = []
    for i, why in enumerate(reasons):
        cluster = UpdateCluster(f"gradient:{i}", (2, 3))
        clusters.append(cluster if why is None else cluster.leave(why, "some/node"))
    return Decision("f_1", ShardedUpdate([Bucket("reduce", [], clusters)]), reason, detail, 2)


def test_all_that_is_sharded_is_no_warning():
    assert summary(_decision(None, None)) == (
        False,
        "sharded over 2 replicas: 2 of 2 gradients, and 0 variables of the optimizer, which take 0 "
        "bytes here in place of 0 (0 saved)",
    )


def test_what_is_left_alone_is_counted():
    is_left, line = summary(_decision(None, "returned", "escapes", "escapes"))
    assert is_left
    assert "1 of 4 gradients" in line
    assert line.endswith(
        f"; left alone: 2 escapes ({REASONS['escapes']}), 1 returned ({REASONS['returned']})"
    )


@pytest.mark.parametrize("reason", sorted(FUNCTION_REASONS))
def test_a_function_that_is_not_sharded(reason):
    is_left, line = summary(_decision("escapes", reason=reason, detail="where"))
    assert is_left
    assert line.startswith(
        f"not sharded: {FUNCTION_REASONS[reason]}: where; left alone: 1 escapes ("
    )


def test_a_loss_that_is_reduced_is_no_warning():
    loss_beside_two_weights = _decision(None, None, "no_update")
    assert summary(loss_beside_two_weights) == summary(_decision(None, None))
    assert summary(_decision("no_update", reason="nothing_to_shard")) == (False, "")


def test_what_does_not_pay_is_no_warning():
    decision = _decision(None, reason="nothing_to_shard")
    (bucket,) = decision.plan.buckets
    decision = replace(decision, plan=ShardedUpdate([bucket.leave("no_profit", "")]))
    is_left, line = summary(decision)
    assert not is_left
    assert line.endswith(f"; left alone: 1 no_profit ({REASONS['no_profit']})")


def _printed(environment, code):
    """What a process writes to a pipe and to standard error."""
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


def test_tables_in_files_break_no_names():
    code = (
        "import sys, types; sys.modules['tf_fuse'] = types.ModuleType('tf_fuse');"
        f"sys.modules['tf_fuse'].__path__ = [{os.path.dirname(tf_fuse.__file__)!r}];"
        "from rich.table import Table; from tf_fuse._console import open_console;"
        "table = Table(); table.add_column('name', overflow='fold'); table.add_row('n' * 300);"
        "console = open_console(); console.print(table); console.print('word ' * 60)"
    )
    out, _ = _printed({}, code)
    assert "n" * 300 in out
    assert ("word " * 60).rstrip() in out
    assert max(map(len, _printed({"COLUMNS": "60"}, code)[0].splitlines())) <= 60


@pytest.mark.parametrize(
    ("configured", "written"),
    [
        ("", "tf_fuse: it stays\n"),
        (
            "logging.basicConfig(level=logging.INFO);",
            "INFO:tf_fuse:it goes\nWARNING:tf_fuse:it stays\n",
        ),
        ("logging.getLogger('tf_fuse').addHandler(logging.NullHandler());", ""),
    ],
)
def test_a_line_of_the_log_names_the_package_once(configured, written):
    code = (
        "import logging, sys, types; sys.modules['tf_fuse'] = types.ModuleType('tf_fuse');"
        f"sys.modules['tf_fuse'].__path__ = [{os.path.dirname(tf_fuse.__file__)!r}];"
        "from tf_fuse import _log; _log.install(); _log.install();"
        f"{configured}"
        "log = logging.getLogger('tf_fuse'); log.info('it goes'); log.warning('it stays')"
    )
    assert _printed({}, code) == ("", written)


def test_values_that_were_put_together_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    function = _function(_decision(None))
    for count, words in ((1, "once"), (2, "2 times")):
        function["joins"] = {"count": count, "bytes": 10, "seconds": 0.5, "by": {"a.py:1": count}}
        print_weight_update_report({"reason": "", "functions": [function]})
        out = capsys.readouterr().out
        assert f"  put together {words}, in 0.500 s, with 10 bytes of other replicas, for:\n" in out


def test_names_of_readers_are_bounded():
    joins = UnshardCounts()
    for i in range(300):
        joins.add(f"train.py:{i}", 10, 0.5)
    joins.add("train.py:0", 10, 0.5)
    told = joins.as_dict()
    assert (told["count"], told["bytes"], told["seconds"]) == (301, 3010, 150.5)
    assert (len(told["by"]), told["by"]["train.py:0"], told["by"]["others"]) == (101, 2, 200)
