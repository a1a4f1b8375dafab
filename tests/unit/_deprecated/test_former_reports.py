# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reports of weight updates that earlier versions wrote: they are read as today's."""

import dataclasses
import json

import pytest

from tests.unit.report.made_reports import WORKER, whole_report
from tf_fuse._deprecated.former_reports import with_new_names
from tf_fuse.cli import explain_saved_report
from tf_fuse.report import json_form
from tf_fuse.shard_update import report as report_module
from tf_fuse.shard_update.decision import Decision, VariableFacts
from tf_fuse.shard_update.plan import Bucket, ShardedUpdate, UpdateCluster


def _report():
    cluster = UpdateCluster("gradient", (8,), frozenset({"gradient"}))
    left = cluster.leave("not_replicated", "some/node")
    bucket = Bucket("reduce", (), [cluster, left])
    other = Bucket("other", (), [cluster]).leave("no_profit", "little")
    facts = VariableFacts(element_bytes={"reduce": 4, "other": 4})
    decision = Decision("step", ShardedUpdate([bucket, other]), None, "", 2, facts=facts)
    function = report_module._function(decision)
    function["joins"] = {"count": 0, "bytes": 0, "seconds": 0.0, "by": {}}
    left = report_module._function(Decision("other", None, "nothing_to_shard"))
    return {"sharded": True, "reason": "", "functions": [function, left]}


def _former():
    """The same, as version 0.2 wrote it."""
    text = json.dumps(_report()).replace('"not_replicated"', '"not_redundant"')
    report = json.loads(text.replace('"nothing_to_shard"', '"nothing_to_cut"'))
    for function in report["functions"]:
        function["packs"] = function.pop("buckets")
        function["is_parted"] = function.pop("state_is_sharded")
    return report


def test_a_former_report_has_the_new_names():
    former = json.dumps(_former())
    assert [former.count(f'"{one}"') for one in ("not_redundant", "nothing_to_cut")] == [1, 1]
    assert "packs" not in json.dumps(_report())
    assert with_new_names(_former()) == with_new_names(_report()) == _report()


@pytest.mark.parametrize("data", [None, 3, {}, {"functions": 3}, {"functions": [3]}])
def test_other_data_stays(data):
    assert with_new_names(data) == data


def test_a_program_can_read_the_former_names():
    function, _ = _report()["functions"]
    with pytest.warns(DeprecationWarning, match="^key 'packs' is deprecated .* use 'buckets'$"):
        assert function["packs"] is function["buckets"]
    with pytest.warns(DeprecationWarning, match="^key 'is_parted' .* use 'state_is_sharded'$"):
        assert function["is_parted"] is function["state_is_sharded"] is False


def test_explain_reads_a_former_report(capsys):
    found = [explain_saved_report.describe(one) for one in (_former(), _report())]
    assert found[0] == found[1]
    assert found[0]["totals"]["gradients_left"] == {"no_profit": 1, "not_replicated": 1}
    assert found[0]["totals"]["functions_left"] == {"nothing_to_shard": 1}
    tables = []
    for one in (_former(), _report()):
        report_module.print_weight_update_report(one)
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    assert "gradient" in tables[0]


def test_a_page_reads_a_former_report():
    data = json_form.as_json(whole_report())
    data["weight_updates"] = {WORKER: _former()}
    read = json_form.from_json(data, "file")
    assert read.notes == whole_report().notes
    assert read.weight_updates == {WORKER: _report()}


def test_a_page_has_a_program_s_report():
    made = dataclasses.replace(whole_report(), weight_updates={WORKER: _report()})
    assert json_form.as_json(made)["weight_updates"] == {WORKER: _report()}
