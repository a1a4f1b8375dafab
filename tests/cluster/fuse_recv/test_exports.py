# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a job with fused receives writes is what stock writes, and needs no plugin to be read."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import scripted

pytestmark = pytest.mark.cluster

_CROSSED = [("stock", "plugin"), ("plugin", "stock")]  # writer and reader of a checkpoint
_LOAD = """
import sys
from tests import scripted
import tensorflow as tf

def load(folder):
    model = tf.saved_model.load(folder + "/model")
    ids = tf.constant([0, 2, 5], tf.int64)
    serve = model.signatures["serving_default"]
    reader = tf.train.load_checkpoint(folder + "/checkpoint")
    names = [n for n in reader.get_variable_to_shape_map() if n != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {
        "plugin": "tf_fuse" in sys.modules,
        "predicted": model.predict(ids).numpy().tolist(),
        "signature": list(serve(ids=ids).values())[0].numpy().tolist(),
        "checkpoint": {n: reader.get_tensor(n).tolist() for n in sorted(names)},
    }

scripted.give([load(folder) for folder in sys.argv[1:]])
"""


def _train(folder, mode, restore=None):
    script = Path(__file__).parent / "exports.py"
    spec = {"mode": mode, "folder": str(folder), "restore": restore}
    (trained,) = scripted.run(script, spec, os.environ)
    return trained


def _load(folders):
    """What a process that never imports tf_fuse reads from each folder."""
    command = [sys.executable, "-c", _LOAD, *map(str, folders.values())]
    found = scripted.result_of(command, cwd=next(iter(folders.values())))
    return dict(zip(folders, found, strict=True))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folders = {mode: tmp_path_factory.mktemp(mode) for mode in ("stock", "plugin")}
    trained = {mode: _train(folder, mode) for mode, folder in folders.items()}
    return folders, trained, _load(folders)


def test_it_was_trained_with_fused_receives(written):
    _, trained, _ = written
    assert trained["stock"]["fused"] == 0
    assert trained["plugin"]["fused"] > 0
    assert trained["plugin"]["losses"] == trained["stock"]["losses"]


def test_a_model_is_loaded_without_the_plugin(written):
    _, trained, loaded = written
    for mode in ("stock", "plugin"):
        assert loaded[mode]["plugin"] is False
        predicted = trained[mode]["predicted"]
        assert np.array_equal(loaded[mode]["predicted"], predicted)
        assert np.array_equal(loaded[mode]["signature"], predicted)


def test_a_model_holds_no_op_of_ours(written):
    from tensorflow.core.protobuf import saved_model_pb2

    folders, _, _ = written

    def nodes(mode):
        data = (folders[mode] / "model" / "saved_model.pb").read_bytes()
        graph = saved_model_pb2.SavedModel.FromString(data).meta_graphs[0].graph_def
        bodies = [graph.node, *(f.node_def for f in graph.library.function)]
        return [node for body in bodies for node in body]

    operations = {mode: sorted(node.op for node in nodes(mode)) for mode in folders}
    assert operations["plugin"] == operations["stock"]
    # All that is left is the option, in the ConfigProto that TensorFlow keeps with each call of a
    # function; a process without the plugin does not look at it.
    where = {
        key
        for node in nodes("plugin")
        for key, value in node.attr.items()
        if b"tf_fuse" in value.SerializeToString()
    }
    assert where <= {"config_proto"}


def test_checkpoints_hold_the_same_names_and_values(written):
    _, _, loaded = written
    assert loaded["plugin"]["checkpoint"] == loaded["stock"]["checkpoint"]
    assert len(loaded["stock"]["checkpoint"]) >= 7


@pytest.fixture(scope="module")
def resumed(written, tmp_path_factory):
    """By writer and reader of the checkpoint: what was trained, and the checkpoint after that."""
    written_to, _, _ = written
    both = [("stock", "stock"), *_CROSSED]
    folders = {one: tmp_path_factory.mktemp("_".join(one)) for one in both}
    trained = {
        (writer, reader): _train(folder, reader, restore=str(written_to[writer] / "checkpoint"))
        for (writer, reader), folder in folders.items()
    }
    loaded = _load(folders)
    return {one: (trained[one], loaded[one]["checkpoint"]) for one in both}


@pytest.mark.parametrize(("writer", "reader"), _CROSSED)
def test_training_goes_on_from_the_other_ones_checkpoint(written, resumed, writer, reader):
    _, trained, _ = written
    there, here = resumed["stock", "stock"], resumed[writer, reader]
    assert (here[0]["fused"] > 0) == (reader == "plugin")
    for what in ("losses", "predicted"):
        assert here[0][what] == there[0][what]
    assert here[0]["losses"] != trained[writer]["losses"], "it began anew"
    assert here[1] == there[1]
    (steps,) = (value for name, value in here[1].items() if name.startswith("model/steps"))
    assert steps == 6
