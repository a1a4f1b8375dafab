# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The options of `tf.config.optimizer.set_experimental_options` that are ours."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

import tf_fuse  # noqa: F401  (installs the options)
from tests import scripted
from tests.unit.options.option_entries import entries
from tf_fuse import options


@pytest.fixture(autouse=True)
def fresh_options(monkeypatch):
    """Options of each test start empty, and the process's own come back after it."""
    monkeypatch.setattr(context.context(), "_optimizer_experimental_options", {})


def _set(values):
    tf.config.optimizer.set_experimental_options(values)


@pytest.mark.parametrize("value", [True, False])
def test_round_trip(value):
    _set({"do_fuse_recv": value})
    assert tf.config.optimizer.get_experimental_options()["do_fuse_recv"] is value


def test_unset_option_is_not_reported():
    assert "do_fuse_recv" not in tf.config.optimizer.get_experimental_options()


def test_config_has_an_entry_only_when_on():
    assert entries() == {}
    _set({"do_fuse_recv": True})
    assert entries() == {"tf_fuse": {"do_fuse_recv": True}}
    _set({"do_fuse_recv": False})
    assert entries() == {}


def _called_with():
    """Our parameters in the options that this thread would call a function with, and the rest."""
    config = config_pb2.ConfigProto.FromString(
        context.context().function_call_options.config_proto_serialized
    )
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    return [(e.name, {k: v.b for k, v in e.parameter_map.items()}) for e in optimizers]


def test_options_reach_threads_that_have_called_functions_before():
    # As ClusterCoordinator's threads, which stock TensorFlow leaves with what they saw first.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(_called_with).result() == []
        _set({"do_fuse_recv": True})
        assert thread.submit(_called_with).result() == [("tf_fuse", {"do_fuse_recv": True})]
        _set({"do_pack_handles": False, "do_fuse_recv": False})
        assert thread.submit(_called_with).result() == []


_SET_BEFORE = """
import sys
from tests import scripted
from tests.unit.options.option_entries import entries
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context
tf.config.optimizer.set_experimental_options({sys.argv[1]: eval(sys.argv[2])})
tf.function(lambda: tf.constant(1))()
try:
    import tf_fuse
except TypeError as error:
    scripted.give(str(error))
    sys.exit()
config = config_pb2.ConfigProto.FromString(
    context.context().function_call_options.config_proto_serialized)
entries = config.graph_options.rewrite_options.custom_optimizers
scripted.give([[e.name, {k: v.b for k, v in e.parameter_map.items()}] for e in entries])
"""


def _set_before_the_import(key, value):
    return scripted.result_of([sys.executable, "-c", _SET_BEFORE, key, value])


def test_options_that_were_set_before_the_import_count():
    found = _set_before_the_import("do_fuse_recv", "True")
    assert found == [["tf_fuse", {"do_fuse_recv": True}]]
    assert _set_before_the_import("do_fuse_recv", "1").startswith(
        "the option 'do_fuse_recv' of tf_fuse takes a bool, got 1 of type int"
    )


def test_options_reach_a_thread_inside_an_executor_scope():
    with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
        _set({"do_fuse_recv": True})
        assert _called_with() == [("tf_fuse", {"do_fuse_recv": True})]
    assert _called_with() == [("tf_fuse", {"do_fuse_recv": True})]
    assert not context.context().function_call_options.executor_type


def test_options_of_other_threads_are_left_alone_but_for_ours():
    def minimum():
        serialized = context.context().function_call_options.config_proto_serialized
        config = config_pb2.ConfigProto.FromString(serialized)
        return config.graph_options.rewrite_options.min_graph_nodes

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(minimum).result() == 0
        _set({"min_graph_nodes": -1, "do_fuse_recv": True})
        assert minimum() == -1
        assert thread.submit(minimum).result() == 0, "as in stock TensorFlow"


def test_stock_keys_are_untouched():
    _set({"constant_folding": False, "do_fuse_recv": True, "min_graph_nodes": -1})
    found = tf.config.optimizer.get_experimental_options()
    assert found["constant_folding"] is False
    rewrite = context.context().config.graph_options.rewrite_options
    assert rewrite.constant_folding == rewrite.OFF
    assert rewrite.min_graph_nodes == -1
    _set({"constant_folding": True})
    assert entries() == {"tf_fuse": {"do_fuse_recv": True}}, "options add up, as TensorFlow's do"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("do_fuse_recieve", "do_fuse_recv"),
        ("do_fuse_receive", "do_fuse_recv"),
        ("Do-Fuse-Recv", "do_fuse_recv"),
        ("do_pack_handle", "do_pack_handles"),
        ("recv_fuse", "do_fuse_recv"),
        ("TF-Fuse", "tf_fuse"),
        ("enable_fused_receives", "do_fuse_recv"),
        ("pack", "do_pack_handles"),
        ("fuse_groups", "fuse_grouping"),
        ("place_variable", "place_variables"),
        ("variable_placement", "place_variables"),
        ("gather_on_server", "gather_on_servers"),
        ("gather_rows", "gather_on_servers"),
        ("shard_gather", "shard_weight_update"),
        ("fuse_lookups", "fuse_lookups_unique"),
        ("deduplicate_ids", "fuse_lookups_unique"),
        ("combine_lookups", "fuse_lookups_combine"),
    ],
)
def test_misspelt_key_is_refused_with_the_right_one(key, meant):
    with pytest.raises(ValueError) as caught:
        _set({"constant_folding": True, key: True})
    assert str(caught.value) == (
        f"unknown option {key!r}; did you mean {meant!r}? "
        f"The options of tf_fuse are: {', '.join(sorted(options.OPTIONS))}"
    )
    assert context.context()._optimizer_experimental_options == {}, "nothing was set"


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("key", sorted(options.REMOVED))
def test_removed_option_is_refused_with_what_to_do(key, value):
    with pytest.raises(ValueError) as caught:
        _set({"do_fuse_recv": True, key: value})
    assert str(caught.value) == (
        f"unknown option {key!r}; {options.REMOVED[key]} "
        f"The options of tf_fuse are: {', '.join(sorted(options.OPTIONS))}"
    )
    assert "tf_fuse has removed it" in options.REMOVED[key]
    assert key not in options.OPTIONS
    assert context.context()._optimizer_experimental_options == {}, "nothing was set"


def test_do_pack_sends_was_removed():
    assert "do_pack_sends" in options.REMOVED


@pytest.mark.parametrize("key", ["layout_optimizer", "some_future_key_of_tensorflow"])
def test_other_keys_are_left_to_tensorflow(key):
    options.validate({key: True})


@pytest.mark.parametrize(("value", "name"), [(1, "int"), ("on", "str"), (None, "NoneType")])
def test_wrong_type_is_refused(value, name):
    text = f"the option 'do_fuse_recv' of tf_fuse takes a bool, got {value!r} of type {name}"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        _set({"do_fuse_recv": value})


def test_how_to_group_goes_with_the_fusing():
    _set({"fuse_grouping": "cost", "fuse_rpc_us": 12, "fuse_gigabytes_per_s": 0.5})
    assert entries() == {}, "it says how, not whether"
    _set({"do_fuse_recv": True})
    assert entries() == {
        "tf_fuse": {
            "do_fuse_recv": True,
            "fuse_grouping": b"cost",
            "fuse_rpc_us": 12.0,
            "fuse_gigabytes_per_s": 0.5,
        }
    }


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("fuse_grouping", "all", "is one of ['level', 'consumer', 'cost', 'dynamic'], got 'all'"),
        ("compress", "float16", "is one of ['', 'bfloat16'], got 'float16'"),
        ("fuse_rpc_us", 0.0, "is a positive number, got 0.0"),
        ("fuse_rpc_us", float("nan"), "is a positive number, got nan"),
        ("fuse_gigabytes_per_s", float("inf"), "is a positive number, got inf"),
        ("fuse_gigabytes_per_s", -1, "is a positive number, got -1"),
        ("shard_weight_update_group_size", -2, "is a whole number of 0 or more except 1, got -2"),
        ("shard_weight_update_group_size", 1, "is a whole number of 0 or more except 1, got 1"),
    ],
)
def test_values_that_an_option_does_not_take(key, value, text):
    with pytest.raises(ValueError, match=f"^{re.escape(f'the option {key!r} of tf_fuse {text}')}$"):
        _set({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fuse_rpc_us", True),
        ("fuse_grouping", 1),
        ("shard_weight_update_group_size", True),
        ("shard_weight_update_group_size", 2.0),
    ],
)
def test_wrong_type_of_a_value(key, value):
    with pytest.raises(TypeError, match=f"the option '{key}' of tf_fuse takes an? "):
        _set({key: value})


def test_threads_of_fused_steps_do_not_spin():
    config = config_pb2.ConfigProto()
    options.add_to_config(config, {"fuse_weight_update": True})
    assert not config.experimental.disable_thread_spinning
    options.add_to_config(config, {"do_fuse_recv": True})
    assert config.experimental.disable_thread_spinning
    options.add_to_config(config, {"do_fuse_recv": False})
    assert config == config_pb2.ConfigProto(
        graph_options=config.graph_options, experimental=config_pb2.ConfigProto.Experimental()
    )


def test_other_custom_optimizers_stay():
    config = tf.compat.v1.ConfigProto()
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    optimizers.add(name="tf_fuse").parameter_map["do_fuse_recv"].b = False
    optimizers.add(name="other").parameter_map["level"].i = 3
    options.add_to_config(config, {"do_fuse_recv": True, "do_pack_handles": False})
    assert [entry.name for entry in optimizers] == ["other", "tf_fuse"]
    assert optimizers[0].parameter_map["level"].i == 3
    assert {k: v.b for k, v in optimizers[1].parameter_map.items()} == {"do_fuse_recv": True}


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ({"do_fuse_gpu": False, "do_fuse_recv": True}, {"do_fuse_recv": True}),
        (
            {"do_fuse_gpu": True, "do_fuse_recv": True},
            {"do_fuse_gpu": True, "do_fuse_recv": True},
        ),
    ],
)
def test_config_carries_only_what_is_on(given, carried):
    config = tf.compat.v1.ConfigProto()
    options.add_to_config(config, given)
    (entry,) = config.graph_options.rewrite_options.custom_optimizers
    assert {k: v.b for k, v in entry.parameter_map.items()} == carried


def test_install_twice_is_install_once():
    before = context.Context.set_optimizer_experimental_options
    options.install(lambda options: None)
    assert context.Context.set_optimizer_experimental_options is before
