# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a model in pieces are restored with other numbers of servers and other pieces."""

import json
import sys
from pathlib import Path

import pytest

from tests.fault import coordinator

# Several clusters, one after the other.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

# Servers, and whether all options are on. Each restores what those before it have saved.
_RUNS = [(2, True), (3, True), (3, False), (1, True)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {key: coordinator.run(__file__, json.dumps(key), folder) for key in _RUNS}


def test_the_number_of_pieces_is_that_of_servers(runs):
    pieces = {key: case["trained"]["pieces"] for key, case in runs.items()}
    assert pieces == {
        (2, True): [2, 2, 1],
        (3, True): [3, 3, 3],
        (3, False): [1, 1, 1],
        (1, True): [1, 1, 1],
    }


def test_any_number_of_servers_goes_on(runs):
    """From each checkpoint: what was saved, and the bits of a step that was not interrupted."""
    for index, key in enumerate(_RUNS):
        saved = runs[key]["trained"]
        for other in _RUNS[index + 1 :]:
            restored = runs[other]["restored"][_name(key)]
            assert restored["state"] == saved["state"], (key, other)
            assert restored["then"] == saved["then"], (key, other)


def test_a_checkpoint_has_the_same_tensors_whatever_the_pieces(runs):
    two, three, _, one = (case["trained"]["tensors"] for case in runs.values())
    assert two == three == one


def _name(key):
    return f"{key[0]} {'on' if key[1] else 'off'}"


def _main(key, folder):
    import tensorflow as tf

    from tests.fault import everything

    servers, is_on = key
    job = coordinator.Job("off", 1, servers)

    def made():
        everything.switch(is_on)
        # The products of pieces add up in another order: only the first step has the same bits.
        tf.config.optimizer.set_experimental_options({"split_matmuls": False})
        return everything.Everything(job.cluster.resolver(), is_on, servers)

    def trained():
        model = made()
        model.reset()
        step = model.plain()
        for _ in range(2):
            model.call(step)
        path = model.checkpoint().write(str(folder / _name(key)))
        state = model.state()
        model.call(step)
        tensors = sorted(one for one in tf.train.list_variables(path) if one[0][0] != "_")
        return {"pieces": model.pieces(), "state": state, "then": model.state(), "tensors": tensors}

    def restored():
        results = {}
        for index in sorted(folder.glob("*.index")):
            if index.stem == _name(key):
                continue
            model = made()
            status = model.checkpoint().read(str(folder / index.stem))
            if is_on:
                status.assert_existing_objects_matched()
            else:  # The optimizer as it is has weights, too, which are the model's.
                status.expect_partial()
            state = model.state()
            model.call(model.plain())
            results[index.stem] = {"state": state, "then": model.state()}
        return results

    coordinator.finish({"trained": trained, "restored": restored})


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), Path(sys.argv[2]))
