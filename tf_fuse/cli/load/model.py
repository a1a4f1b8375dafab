# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a `TracedStep` of what a user names: a Keras file, a SavedModel, or a program."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tf_fuse.cli.load.program import ProgramError, named_function, raised
from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.replicas.step import ReplicaStep, measured_step
from tf_fuse.scale.steps.trace import TracedStep, recorded_variables, trace

_MEASURE_S = 1.5
_WARM_UP_STEPS = 3
_INSTEAD = (
    "If the model needs classes or functions of yours, name a Python function that makes it and "
    "returns (step, arguments), as --model MODULE:NAME"
)


def load(model: str, batch: int, signature: str | None = None) -> TracedStep:
    """Trace a model's training step.

    Args:
      model: a `.keras` file; the folder of a SavedModel; or MODULE:NAME of a Python function
        without parameters, which makes the variables and returns (function, args): the training
        step, a `tf.function` or Python function, and what it is called with.
      batch: examples of a step of a file; and what to take for sizes that a graph does not have.
      signature: of a SavedModel, the training step; None for its only one.

    Raises:
      ScaleError: it is neither, or cannot be traced.
    """
    path = Path(model)
    if model.endswith(".keras"):
        _check_file(path)
        return _keras(path, batch)
    if path.is_dir():
        return _saved_model(path, batch, signature)
    if ":" in model:
        return _program(model, batch)
    raise ScaleError(
        f"{model!r} is neither a .keras file, nor the folder of a SavedModel, nor MODULE:NAME, as "
        "in train:step_and_args"
    )


def _saved_model(path: Path, batch: int, signature: str | None) -> TracedStep:
    """Trace a signature of a SavedModel, with inputs of zero."""
    import tensorflow as tf

    with recorded_variables() as variables:
        try:
            loaded = tf.saved_model.load(str(path))
        except (ValueError, OSError) as error:
            raise ScaleError(f"TensorFlow cannot load {path}: {error}") from error
    names = sorted(loaded.signatures)
    if not names:
        raise ScaleError(
            f"{path} has no signature; save it anew with the training step as one: "
            "tf.saved_model.save(model, folder, signatures={'train': step})"
        )
    if signature is None and len(names) == 1:
        signature = names[0]
    if signature not in names:
        raise ScaleError(
            f"{path} has the signatures {', '.join(names) or 'none'}; name the training step's by "
            f"--signature, got {signature}"
        )
    specs = loaded.signatures[signature].structured_input_signature[1]
    inputs = tuple(_zeros(one, batch) for one in specs.values())

    def step(*args: Any) -> Any:
        # Keeps all variables: a signature alone does not.
        function = loaded.signatures[signature]
        return function(**dict(zip(specs, args, strict=True)))

    return trace(path.name, step, inputs, variables, batch)


def _program(name: str, batch: int) -> TracedStep:
    try:
        make = named_function(name)
    except ProgramError as error:
        raise ScaleError(str(error)) from error
    with recorded_variables() as variables:
        try:
            made = make()
        except Exception as error:  # of the user's function
            raise ScaleError(raised(name, error)) from error
    parts = made if isinstance(made, tuple) else (made,)
    kinds = ", ".join(type(one).__name__ for one in parts)
    if len(parts) != 2 or not callable(parts[0]):
        raise ScaleError(f"{name} must return (function, arguments), and returned {kinds}")
    if not isinstance(parts[1], (tuple, list)):
        raise ScaleError(
            f"{name} must return a tuple of arguments after the function, and returned {kinds}"
        )
    try:
        return trace(name, *parts, variables, batch)
    except Exception as error:  # of the user's step
        raise ScaleError(raised(f"the step of {name}", error)) from error


def _keras(path: Path, batch: int) -> TracedStep:
    """Trace the training step of a saved Keras model, with its optimizer or Adam."""
    import tensorflow as tf

    with recorded_variables() as variables:
        model, optimizer, inputs = _loaded(path, batch)

    @tf.function
    def step(x: Any) -> Any:
        value, gradients = _gradients(model, x)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return trace(path.name, step, (inputs,), variables, batch)


def load_replica(file: str, batch: int) -> ReplicaStep:
    """Measure the training step of a saved Keras model in this process.

    Args:
      file: a `.keras` file.
      batch: examples of a step of a replica.

    Raises:
      ScaleError: it is something else, or cannot be loaded.
    """
    path = Path(file)
    if not file.endswith(".keras"):
        raise ScaleError(f"--replicas takes a .keras file as --model, got {file!r}")
    _check_file(path)
    model, optimizer, inputs = _loaded(path, batch)
    weights = model.trainable_variables

    def gradients() -> Any:
        return _gradients(model, inputs)[1]

    def update(found: Any) -> None:
        optimizer.apply_gradients(zip(found, weights, strict=True))

    return measured_step(path.name, weights, gradients, update)


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ScaleError(f"{path} does not exist")
    if not path.is_file():
        raise ScaleError(f"{path} is a folder, not a file that Keras saved")


def _loaded(path: Path, batch: int) -> tuple[Any, Any, Any]:
    """Return a saved Keras model, its optimizer or Adam, and inputs of zero."""
    import keras
    import tensorflow as tf

    try:
        model = keras.models.load_model(path)
    except Exception as error:  # of Keras, or of what it reads the file with
        raise ScaleError(
            f"Keras cannot load {path}: {error} ({type(error).__name__}). {_INSTEAD}"
        ) from error
    if not getattr(model, "inputs", None):
        raise ScaleError(f"the model in {path} was saved before it knew its inputs. {_INSTEAD}")
    if not model.trainable_variables:
        raise ScaleError(f"the model in {path} has no weights to train")
    optimizer = getattr(model, "optimizer", None) or keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    inputs = tf.nest.map_structure(lambda one: _zeros(one, batch), model.inputs)
    return model, optimizer, inputs[0] if len(inputs) == 1 else inputs


def _gradients(model: Any, x: Any) -> tuple[Any, Any]:
    """Return the loss of a batch, and its gradients."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        value = _loss(model, getattr(model, "loss", None), x, outputs)
    return value, tape.gradient(value, model.trainable_variables)


def _loss(model: Any, loss: Any, x: Any, outputs: Any) -> Any:
    """Return the model's loss for labels of zero; of a model without one, a square."""
    import tensorflow as tf

    if loss is None:
        return tf.add_n([tf.reduce_mean(tf.square(one)) for one in tf.nest.flatten(outputs)])
    if "sparse" in str(getattr(loss, "name", loss)).lower():
        labels = tf.nest.map_structure(lambda one: tf.zeros(one.shape[:-1], tf.int32), outputs)
    else:
        labels = tf.nest.map_structure(tf.zeros_like, outputs)
    return model.compute_loss(x=x, y=labels, y_pred=outputs)


def _zeros(spec: Any, batch: int) -> Any:
    """Return a tensor without unknown dimensions: the first is the batch's."""
    import tensorflow as tf

    if getattr(spec.shape, "rank", 0) is None:
        raise ScaleError(f"the input {spec.name} has no rank; give the signature one")
    sizes = list(spec.shape)
    known = [batch if at == 0 else 1 for at in range(len(sizes))]
    shape = [one if size is None else size for size, one in zip(sizes, known, strict=True)]
    return tf.zeros(shape, spec.dtype)


def measure_cpu_s(traced: TracedStep) -> float | None:
    """Run a step in this process for about a second; return its CPU seconds, or None."""
    if traced.function is None:
        return None
    for _ in range(_WARM_UP_STEPS):
        traced.function()
    steps, cpu, begin = 0, time.process_time(), time.perf_counter()
    while steps < 3 or time.perf_counter() - begin < _MEASURE_S:
        traced.function()
        steps += 1
    return (time.process_time() - cpu) / steps
