# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files of a Keras 3 model whose table is in pieces on two servers.

They have whole variables: a model goes on training, to the same bits, wherever it is read.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# The model, and what is done with it: also in a program without the plugin.
_MODEL = """
import keras
import numpy as np
import tensorflow as tf

OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "EMA": lambda: keras.optimizers.SGD(0.01, momentum=0.5, use_ema=True),
}
_rng = np.random.default_rng(7)
X = _rng.integers(0, 64, size=[40, 3]).astype(np.int32)
Y = _rng.normal(size=[40]).astype(np.float32)


def made(optimizer):
    layers = [keras.layers.Embedding(64, 8), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([3], dtype="int32"), *layers])
    model.compile(OPTIMIZERS[optimizer](), "mse", jit_compile=False)
    return model


def fit(model, **more):
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, **more)
    return predicted(model)


def predicted(model):
    return model.predict(X, verbose=0).ravel().tolist()


def written(model, folder="."):
    model.save(f"{folder}/written.keras")
    model.save_weights(f"{folder}/written.weights.h5")
    model.export(f"{folder}/written", verbose=False)
    return [predicted(model), fit(model)]


def read(optimizer, folder="."):
    whole = keras.saving.load_model(f"{folder}/written.keras")
    weights = made(optimizer)
    weights.optimizer.build(weights.trainable_variables)
    weights.load_weights(f"{folder}/written.weights.h5")
    return whole, weights


def used(models, folder="."):
    loaded = tf.saved_model.load(f"{folder}/written")
    served = loaded.serve(X).numpy().ravel().tolist()
    return [[predicted(one), fit(one)] for one in models], served
"""
_ALONE = """
import json, sys
print(json.dumps({}))
assert "tf_fuse" not in sys.modules
"""


@pytest.fixture(scope="module", params=["Adam", slow("EMA")])
def cases(request, tmp_path_factory):
    return coordinator.run(__file__, tmp_path_factory.mktemp("files"), request.param, seconds=500)


@pytest.mark.parametrize("case", ["to another process", "from another process"])
def test_files_are_read_elsewhere(cases, case):
    """`.keras` and `.weights.h5`, with the optimizer's slots; another program serves an export."""
    found = cases[case]
    assert "raised" not in found, found
    models, served = found["read"]
    assert models == [found["written"]] * 2
    assert served == pytest.approx(found["written"][0], abs=1e-6)


def test_a_backup_is_restored(cases):
    found = cases["backup"]
    assert "raised" not in found, found
    assert found["epochs"] == [1, 2]
    assert found["again"] == found["whole"]


def test_the_table_is_in_pieces(cases):
    assert cases["pieces"] == [2, 1, 1]


def _main(folder, optimizer):
    import keras
    import tensorflow as tf

    job = coordinator.Job("off", 1, 2)
    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    strategy = tf.distribute.ParameterServerStrategy(
        job.cluster.resolver(),
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(512, 2),
    )
    program = {}
    exec(_MODEL, program)
    folder = Path(folder)
    fit = program["fit"]

    def made():
        keras.utils.set_random_seed(3)
        with strategy.scope():
            return program["made"](optimizer)

    def elsewhere(expression, where):
        """Return what an expression gives in a program without the plugin."""
        where.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", _MODEL + _ALONE.format(expression)],
            cwd=where, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    def to_other_process():
        where, model = folder / "to", made()
        fit(model)
        where.mkdir()
        written = program["written"](model, where)
        return {"written": written, "read": elsewhere(f"used(read({optimizer!r}))", where)}

    def from_other_process():
        where = folder / "from"
        written = elsewhere(f"[fit(model := made({optimizer!r})), written(model)][1]", where)
        with strategy.scope():
            models = program["read"](optimizer, where)
        return {"written": written, "read": program["used"](models, where)}

    class Stopped(Exception):
        """Ends a training."""

    def backup():
        class Stop(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 1:
                    raise Stopped

        callbacks = [keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)]
        whole = fit(made(), epochs=3)
        with pytest.raises(Stopped):
            fit(made(), epochs=3, callbacks=[*callbacks, Stop()])
        model = made()
        again = fit(model, epochs=3, callbacks=callbacks)
        return {"whole": whole, "again": again, "epochs": model.history.epoch}

    def pieces():
        return [len(getattr(one.value, "variables", [one])) for one in made().weights]

    coordinator.finish(
        {
            "to another process": to_other_process,
            "from another process": from_other_process,
            "backup": backup,
            "pieces": pieces,
        }
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
