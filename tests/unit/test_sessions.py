# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf_fuse.session_config`, and what a session takes from `set_experimental_options`."""

import re

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tf_fuse

v1 = tf.compat.v1


def _ours(config):
    """Our entries: list of (name, parameters)."""
    entries = config.graph_options.rewrite_options.custom_optimizers
    return [(e.name, {k: v.b for k, v in e.parameter_map.items()}) for e in entries]


def test_default_is_on():
    config = tf_fuse.session_config()
    assert _ours(config) == [("tf_fuse", {"do_fuse_recv": True})]
    config.graph_options.rewrite_options.ClearField("custom_optimizers")
    assert config.graph_options.rewrite_options == v1.ConfigProto().graph_options.rewrite_options


def test_a_copy_is_returned():
    given = v1.ConfigProto(allow_soft_placement=True, inter_op_parallelism_threads=3)
    given.graph_options.rewrite_options.custom_optimizers.add(name="other")
    before = given.SerializeToString(deterministic=True)
    config = tf_fuse.session_config(given)
    assert given.SerializeToString(deterministic=True) == before
    assert config.allow_soft_placement is True
    assert config.inter_op_parallelism_threads == 3
    assert _ours(config) == [("other", {}), ("tf_fuse", {"do_fuse_recv": True})]


def test_off_leaves_nothing_of_ours():
    given = v1.ConfigProto(log_device_placement=True)
    assert tf_fuse.session_config(given, do_fuse_recv=False) == given
    on = tf_fuse.session_config(given)
    assert _ours(tf_fuse.session_config(on, do_fuse_recv=False)) == []
    assert tf_fuse.session_config(on) == on, "what was there is replaced"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"do_fuse_recv": 1},
            TypeError,
            "the option 'do_fuse_recv' of tf_fuse takes a bool, got 1 of type int",
        ),
        (
            {"do_fuse_recieve": True},
            ValueError,
            "unknown option 'do_fuse_recieve'; did you mean 'do_fuse_recv'? ",
        ),
        (
            {"do_pack_handles": True},
            ValueError,
            "the option 'do_pack_handles' does not apply to sessions; "
            "the options of tf_fuse in sessions are: ",
        ),
        (
            {"constant_folding": False},
            ValueError,
            "the option 'constant_folding' is unknown; the options of tf_fuse in sessions are: ",
        ),
    ],
)
def test_wrong_options_are_refused(options, error, text):
    with pytest.raises(error, match="^" + re.escape(text)):
        tf_fuse.session_config(**options)


@pytest.mark.parametrize("config", [{"allow_soft_placement": True}, "grpc://localhost:2222"])
def test_what_is_no_config_is_refused(config):
    text = f"config must be a tf.compat.v1.ConfigProto or None, got {type(config).__name__}"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        tf_fuse.session_config(config)


def test_scheduling_of_receives_excludes_fusing():
    config = v1.ConfigProto()
    config.graph_options.enable_recv_scheduling = True
    assert tf_fuse.session_config(config, do_fuse_recv=False) == config
    with pytest.raises(ValueError, match=r"^do_fuse_recv and graph"):
        tf_fuse.session_config(config)


def test_session_without_config_takes_the_experimental_options(monkeypatch):
    monkeypatch.setattr(context.context(), "_optimizer_experimental_options", {})
    with tf.Graph().as_default():
        assert _ours(v1.Session()._config) == []
        tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
        assert _ours(v1.Session()._config) == [("tf_fuse", {"do_fuse_recv": True})]
        assert _ours(v1.Session(config=v1.ConfigProto())._config) == []


def test_target_of_a_resolver_is_a_session_of_tensorflow():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["localhost:1"]}), rpc_layer="grpc+fuse"
    )
    # Nobody listens on port 1; what matters is who tries.
    config = v1.ConfigProto(operation_timeout_in_ms=200)
    target = resolver.master("worker", 0)
    assert target == "grpc+fuse://localhost:1"
    with tf.Graph().as_default(), pytest.raises(tf.errors.OpError) as caught:
        v1.Session(target, config=config).run(tf.constant(1))
    assert isinstance(
        caught.value, (tf.errors.DeadlineExceededError, tf.errors.UnavailableError)
    ), caught.value
    with (
        tf.Graph().as_default(),
        pytest.raises(tf.errors.NotFoundError, match="No session factory"),
    ):
        v1.Session("grpc+other://localhost:1")
