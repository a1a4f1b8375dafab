# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras 3's `fit` on parameter servers when the coordinator or a server is killed."""

import sys

import pytest

from tests.fault import coordinator
from tests.fault.parameter_server import keras_fit_program as program
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return coordinator.run(__file__, tmp_path_factory.mktemp("backups"), seconds=500)


def test_a_coordinator_that_was_killed_goes_on_at_the_epoch(cases):
    """All has the bits of a run without a fault: losses, step, weights, the optimizer's state."""
    whole, again = cases["without a fault"], cases["coordinator killed"]
    assert again["killed"] == -9
    assert again["epochs"] == list(range(2, program.EPOCHS))
    for what in ("step", "variables"):
        assert again[what] == whole[what], what
    for name, values in again["history"].items():
        assert values == whole["history"][name][2:], name


# (`test_keras_backup_faults` goes on at steps by default.)
@pytest.mark.parametrize("data", [slow("arrays"), slow("function"), slow("repeated")])
def test_a_coordinator_that_was_killed_twice_in_an_epoch_goes_on_at_the_step(data, tmp_path):
    """With a backup every two batches: no step is lost, none trains twice."""
    cases = coordinator.run(__file__, tmp_path, data)
    whole, found = cases["without a fault"], cases["killed twice"]
    assert found["killed"] == [-9, -9]
    assert found["epochs"] == [2, 3]
    # (Workers that read data run ahead of callbacks.)
    first, rest = found["batches"][:-5], found["batches"][-5:]
    assert rest == list(range(5))
    assert first == [3, 4] if data == "arrays" else first == list(range(5))[5 - len(first) :]
    assert found["step"] == whole["step"]
    # (Workers' data of epochs of a number of steps begins anew.)
    if data != "repeated":
        assert found["variables"] == whole["variables"]


def test_a_file_has_the_values_between_two_steps(cases):
    """Callbacks write files in an epoch: steps that have begun end first."""
    found = cases["files in an epoch"]
    assert found["steps"] == sorted(set(found["steps"]))
    assert len(found["steps"]) > 2 * program.EPOCHS
    assert found["files"] == found["one process"]


def test_a_lost_server_ends_fit(cases):
    """With the error of a custom loop; after a restart training goes on from the last backup."""
    lost = cases["server killed"]
    assert lost["raised"] == lost["loop"] == "UnavailableError"
    whole = cases["without a fault"]
    assert lost["again"]["epochs"] == [program.EPOCHS - 1]
    for what in ("step", "variables"):
        assert lost["again"][what] == whole[what], what


def _main(folder, data=""):
    import keras
    import tensorflow as tf

    job = coordinator.Job("off", 1, 1)
    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    cluster = {name: job.cluster.cluster_spec[name] for name in ("worker", "ps")}

    def without_a_fault():
        return program.run(cluster, f"{folder}/whole", data=data or "arrays")[1]["trained"]

    def killed_twice():
        more = {"save_freq": 2, "data": data}
        where = cluster, f"{folder}/twice"
        killed = [program.run(*where, kill_in=2, kill_after=n, **more)[0] for n in (2, 3)]
        return {"killed": killed, **program.run(*where, **more)[1]["trained"]}

    def coordinator_killed():
        where = cluster, f"{folder}/coordinator"
        killed, _ = program.run(*where, kill_in=2)
        return {"killed": killed, **program.run(*where)[1]["trained"]}

    def files_in_an_epoch():
        """Digests of files by the step that they are of, and those of one process."""

        def state(model):
            variables = (*model.variables, *model.optimizer.variables)
            return coordinator.exact([keras.ops.convert_to_numpy(one) for one in variables])

        class Slow(keras.layers.Layer):
            """Changes nothing, and takes long: the next step runs while a file is written."""

            def call(self, x):
                one = tf.fill([1000, 1000], tf.reduce_mean(x))
                return x + 0.0 * tf.reduce_sum(one @ one)

        files = []

        class Save(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                files.append(f"{folder}/{len(files)}.keras")
                self.model.save(files[-1])

        class Note(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                local.append(state(self.model))

        local = []
        program.train(job, f"{folder}/files", callbacks=[Save()], slow_layers=[Slow()])
        program.train(None, f"{folder}/local", callbacks=[Note()], slow_layers=[Slow()])
        models = [keras.saving.load_model(one, {"Slow": Slow}) for one in files]
        steps = [int(one.optimizer.iterations.numpy()) for one in models]
        return {
            "steps": steps,
            "files": [state(one) for one in models],
            "one process": [local[step - 1] for step in steps],
        }

    def server_killed():
        class Kill(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == program.EPOCHS - 1:
                    job.cluster.kill("ps:0")

        backup = f"{folder}/server"
        try:
            program.train(job, backup, callbacks=[Kill()])
            raised = None
        except tf.errors.OpError as error:
            raised = type(error).__name__

        @tf.function
        def step():
            return variable.read_value()

        loop = coordinator.caught(lambda: job.call(step))["raised"]
        job.cluster.restart("ps:0")
        return {"raised": raised, "loop": loop, "again": program.run(cluster, backup)[1]["trained"]}

    variable = job.variables([1.0])[0]
    if data:
        coordinator.finish({"without a fault": without_a_fault, "killed twice": killed_twice})
    coordinator.finish(
        {
            "without a fault": without_a_fault,
            "coordinator killed": coordinator_killed,
            "files in an epoch": files_in_an_epoch,
            "server killed": server_killed,
        }
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
