# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One switch turns on several options, and single options refine it."""

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tf_fuse  # noqa: F401  (installs the options)
from tests.unit.options.option_entries import entries
from tf_fuse import options


@pytest.fixture(autouse=True)
def fresh_options(monkeypatch):
    """Options of each test start empty, and the process's own come back after it."""
    monkeypatch.setattr(context.context(), "_optimizer_experimental_options", {})


def _set(values):
    tf.config.optimizer.set_experimental_options(values)


def _readings():
    """What those who read the options see."""
    return {
        "packs_handles": options.packs_handles(context.context()),
        "shards_updates": options.is_on(context.context(), "shard_weight_update"),
        "demands_bits": options.is_on(context.context(), "shard_weight_update_exact"),
        "fuses_updates": options.fuses_updates(context.context()),
        "places_variables": options.is_on(context.context(), "place_variables"),
        "gathers_on_servers": options.is_on(context.context(), "gather_on_servers"),
        "entry": entries().get("tf_fuse"),
    }


def test_one_switch_does_what_its_options_do():
    _set({"tf_fuse": True})
    switched = _readings()
    _set({"tf_fuse": False, **dict.fromkeys(options.SWITCHED_ON, True)})
    assert switched == _readings()
    assert switched["entry"] == {"do_fuse_recv": True}
    assert switched["shards_updates"] and switched["demands_bits"]
    assert switched["places_variables"] and switched["gathers_on_servers"]


def test_a_single_option_refines_the_switch_before_and_after_it():
    _set({"do_fuse_recv": False})
    _set({"tf_fuse": True})
    assert _readings()["entry"] is None
    assert _readings()["shards_updates"]
    _set({"do_fuse_recv": True, "shard_weight_update": False, "fuse_weight_update": True})
    found = _readings()
    assert found["entry"] == {"do_fuse_recv": True}
    assert not found["shards_updates"]
    assert found["fuses_updates"]


def test_the_switch_is_off_as_if_never_set():
    _set({"tf_fuse": True})
    _set({"tf_fuse": False})
    assert _readings() == {
        "packs_handles": False,
        "shards_updates": False,
        "demands_bits": False,
        "fuses_updates": None,
        "places_variables": False,
        "gathers_on_servers": False,
        "entry": None,
    }


def test_the_switch_is_reported_as_it_was_set():
    _set({"tf_fuse": True})
    found = tf.config.optimizer.get_experimental_options()
    assert found["tf_fuse"] is True
    assert "do_fuse_recv" not in found


def test_the_switch_extends_what_its_options_need(monkeypatch):
    installed = []
    monkeypatch.setattr(
        "tf_fuse.parameter_server.interception.extend", lambda: installed.append("placement")
    )
    monkeypatch.setattr(
        "tf_fuse.shard_update.interception.install", lambda *_: installed.append("updates")
    )
    monkeypatch.setattr(
        "tf_fuse.parameter_server.lookups.server_gather.install",
        lambda is_on: installed.append(is_on.keywords["key"]),
    )
    _set({"tf_fuse": True})
    assert installed == ["updates", "placement", "gather_on_servers"]
    installed.clear()
    _set({"tf_fuse": True, "place_variables": False, "gather_on_servers": False})
    assert installed == ["updates"]
    installed.clear()
    _set({"place_variables": True})
    assert installed == ["placement"]
    installed.clear()
    _set({"gather_on_servers": True})
    assert installed == ["gather_on_servers"]


# --- What one option does on parameter servers ---------------------------------------------------

_ON_SERVERS = {"place_variables": "places_variables", "gather_on_servers": "gathers_on_servers"}


@pytest.mark.parametrize("umbrella", ["tf_fuse", "shard_weight_update"])
@pytest.mark.parametrize("key", sorted(_ON_SERVERS))
def test_a_part_that_is_off_is_left_out(umbrella, key):
    _set({umbrella: True})
    before = _readings()
    _set({key: False})
    assert _readings() == before | {_ON_SERVERS[key]: False}
    _set({key: True})
    assert _readings() == before


@pytest.mark.parametrize("key", sorted(_ON_SERVERS))
def test_a_part_works_alone(key):
    before = _readings()
    _set({key: True})
    assert _readings() == before | {_ON_SERVERS[key]: True}
    _set({"tf_fuse": False, "shard_weight_update": False})
    assert _readings() == before | {_ON_SERVERS[key]: True}


def test_parts_are_reported_as_they_were_set():
    _set({"shard_weight_update": True, "gather_on_servers": False})
    found = tf.config.optimizer.get_experimental_options()
    assert found["gather_on_servers"] is False
    assert "place_variables" not in found
