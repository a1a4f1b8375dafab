# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who reads, saves, restores or assigns the optimizer's state: as without the option."""

import json

import pytest

from tests.cluster.collectives.ranks import Ranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_KERAS = [
    "variables_are_read",
    "weights_are_got",
    "slot_is_added_to",
    "rate_is_assigned",
    "checkpoint_is_saved",
    "checkpoint_is_saved_aside",
    "checkpoints_are_managed",
    "model_is_saved",
    "some_are_updated",
    "small_packs",
    "switched_off_and_on",
]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(["grpc+fuse"] * 2, server=False, patient=True) as ranks:
        yield ranks


def _both(ranks, folder, readers, sharded_counts, **args):
    """With the option off and on; how many slots are in shards before and during the reads."""
    args = {"folder": str(folder), "readers": readers, **args}
    whole = ranks.values("between_steps", on=False, **args)
    sharded = ranks.values("between_steps", on=True, **args)
    for one, other in zip(whole, sharded, strict=True):
        assert other.pop("sharded") == sharded_counts
        assert set(one.pop("sharded")) == {0}
        assert one == other
    return sharded


def _goes_on(result):
    """Of two steps behind a checkpoint, what must be equal."""
    return result["losses"][-2:], result["slots"], result["weights"]


def test_keras(ranks, tmp_path):
    # The last three have other functions in between: of three weights, of one slot each, and none.
    sharded_counts = [12] * 9 + [6, 12, 6, 12, 0]
    results = _both(ranks, tmp_path, _KERAS, sharded_counts)
    saved = results[0]["model_is_saved"]
    assert [len(digest) for digest in saved] == [64, 64]
    for result in results:
        # (Each function had its shards in between.)
        assert result["variables_are_read"] == [result["variables_are_read"][0]] * 5


def test_schedule_and_averages(ranks, tmp_path):
    readers = ["rate_is_read", "rate_is_read", "model_is_saved", "averages_overwrite"]
    args = {"optimizer": "SGD", "momentum": 0.9, "use_ema": True, "schedule": True}
    _both(ranks, tmp_path, readers, [12] * 4, **args)


def test_tf_keras(ranks, tmp_path):
    readers = ["variables_are_read", "checkpoint_is_saved", "saved_model", "slot_is_added_to"]
    _both(ranks, tmp_path, readers, [12] * 4, library="tf_keras", schedule=True)


def test_backup_and_restore_in_fit(ranks, tmp_path):
    whole = ranks.values("backed_up", folder=str(tmp_path), on=False)
    sharded = ranks.values("backed_up", folder=str(tmp_path), on=True)
    assert whole == sharded
    assert [len(result["losses"]) for result in sharded] == [1, 1]
    assert [result["why"] for result in sharded] == [None, None]


def test_training_goes_on_without_the_plugin_and_with_it_again(ranks, tmp_path):
    reads = {"folder": str(tmp_path), "readers": ["variables_are_read"] * 2}
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    ranks.values("between_steps", on=True, **reads)
    assert ranks.values("goes_on", steps=1, saved=one)[0]["sharded"] == 12
    expected = [_goes_on(result) for result in ranks.values("goes_on", steps=2)]
    with Ranks(["grpc"] * 2, server=False) as plain:
        results = plain.values("between_steps", on=False, restored=one, **reads)
        assert [_goes_on(result) for result in results] == expected
        plain.values("goes_on", steps=0, saved=two)
        expected = [_goes_on(result) for result in plain.values("goes_on", steps=2)]
        assert plain.values("plugin_loaded") == [False, False]
        for reasons in plain.values("imports_the_plugin"):
            assert reasons == [
                ("traced_before", ""),
                ("no_group", "the workers run the protocol 'grpc', not 'grpc+fuse'"),
            ]
    results = ranks.values("between_steps", on=True, restored=two, **reads)
    assert [result["sharded"] for result in results] == [[12, 12]] * 2
    assert [_goes_on(result) for result in results] == expected


def test_training_goes_on_with_one_replica_and_with_two_again(ranks, tmp_path):
    reads = {"folder": str(tmp_path), "readers": ["variables_are_read"] * 2}
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    ranks.values("between_steps", on=True, **reads)
    ranks.values("goes_on", steps=1, saved=one)
    with Ranks(["grpc+fuse"], server=False) as alone:
        (whole,) = alone.values("between_steps", on=False, restored=one, **reads)
        (same,) = alone.values("between_steps", on=True, restored=one, **reads)
        assert whole == same
        # There is nothing to reduce.
        assert alone.values("decided") == [[("no_group", [])]]
        alone.values("goes_on", steps=0, saved=two)
    whole = ranks.values("between_steps", on=False, restored=two, **reads)
    sharded = ranks.values("between_steps", on=True, restored=two, **reads)
    assert [_goes_on(result) for result in whole] == [_goes_on(result) for result in sharded]


def test_a_thread_reads_what_is_between_two_steps(ranks):
    steps = 30
    whole = ranks.values("read_by_a_thread", on=False, steps=steps)
    sharded = ranks.values("read_by_a_thread", on=True, steps=steps)
    for one, other in zip(whole, sharded, strict=True):
        assert other["errors"] == []
        for read, after in zip(other["read"], one["after"], strict=True):
            assert len(after) == steps + 1
            assert read
            assert set(read) <= set(after)
        for key in ("losses", "slots", "weights"):
            assert one[key] == other[key]


def test_memory_in_use_is_less_by_the_state_that_others_have(ranks):
    if ranks.values("memory_is_counted") != [True, True]:
        pytest.skip("TensorFlow's allocator counts nothing here (it does with oneDNN)")
    whole = ranks.values("memory", on=False)
    parts = ranks.values("memory", on=True)
    for one, other in zip(whole, parts, strict=True):
        state = one["state"]
        assert state == other["state"] == 3 * 12 * 330 * 1000 * 4
        assert one["stepped"] > state
        # A half, but for what is small beside that.
        for when in ("stepped", "again"):
            assert one[when] - other[when] > 0.45 * state
        # Who reads has the whole state, until the next step.
        assert other["read"] - other["stepped"] > 0.45 * state


def test_counters_and_explain(ranks, tmp_path, capsys):
    from tf_fuse import cli

    before = ranks.values("update_counters")
    _both(ranks, tmp_path, ["variables_are_read"] * 3, [12] * 3)
    after = ranks.values("update_counters")
    grown = [
        {key: new[key] - old[key] for key in ("functions_sharded", "join_bytes", "joins", "steps")}
        for old, new in zip(before, after, strict=True)
    ]
    elements = 10 * 37 + 37 + 37 * 5 + 5 + 5 * 1 + 1
    assert [one.pop("join_bytes") for one in grown] != [0, 0]
    assert grown == [{"functions_sharded": 1, "joins": 3, "steps": 3}] * 2
    # Each has read the other's half of both slots, three times.
    read = sum(
        new["join_bytes"] - old["join_bytes"] for old, new in zip(before, after, strict=True)
    )
    assert read == 3 * 2 * 4 * elements
    for counters in after:
        assert counters["shard_groups"] >= 1
        assert 0 < counters["state_bytes"] < counters["whole_state_bytes"]
    report = ranks.values("report")[0]
    report["functions"] = report["functions"][-1:]
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert cli.main(["explain", str(tmp_path / "report.json")]) == 0
    out = capsys.readouterr().out
    assert "Gradients: 6 updated in shards, 0 whole." in out
    assert f"in place of {2 * 4 * elements:,}." in out
    assert "sharding it saves 0.00 ms" in out
