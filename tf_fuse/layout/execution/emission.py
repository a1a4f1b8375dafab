# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write a program into the graph of a `tf.function`, for the devices of this process."""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tf_fuse.layout.execution import traffic
from tf_fuse.layout.execution.communication.communicator import Communicator, PerDevice
from tf_fuse.layout.execution.communication.relayouts import Relayouts
from tf_fuse.layout.execution.device_program import DeviceProgram, Instruction, Read
from tf_fuse.layout.execution.kernels.dispatch import KERNELS, same
from tf_fuse.layout.execution.kernels.halo import Neighbours
from tf_fuse.layout.execution.kernels.local_operation import LocalOperation, Seed, own_state
from tf_fuse.layout.execution.tables_in_place import NOT_IN_PLACE, TablesInPlace
from tf_fuse.layout.operators.random_numbers import STATELESS
from tf_fuse.layout.strategies.inner_halos import InnerHalo
from tf_fuse.layout.strategies.strategy import InnerAllReduce
from tf_fuse.layout.trace.records import Sources
from tf_fuse.layout.types.control_flow import MERGE, OUTSIDE, Region
from tf_fuse.layout.types.errors import LayoutError

# By kind of an operation with a random state, the function that has none.
_REPLACEMENTS: Final = {
    "Multinomial": "tf.random.stateless_categorical",
    "ParameterizedTruncatedNormal": "tf.random.stateless_parameterized_truncated_normal",
    "RandomGamma": "tf.random.stateless_gamma",
    "RandomPoissonV2": "tf.random.stateless_poisson",
    "RandomShuffle": "tf.random.experimental.stateless_shuffle",
    "RandomStandardNormal": "tf.random.stateless_normal",
    "RandomUniform": "tf.random.stateless_uniform",
    "RandomUniformInt": "tf.random.stateless_uniform",
    "StatefulRandomBinomial": "tf.random.stateless_binomial",
    "TruncatedNormal": "tf.random.stateless_truncated_normal",
}
_OTHER_DRAW: Final = "tf.random.stateless_*"
_MADE: Final = ("Const", "Placeholder", "Variable", "VarHandleOp")


class Emission:
    """A program in a graph.

    Attributes:
      held: what this process's devices hold of each tensor, in the layout in which it is made.
    """

    def __init__(
        self,
        program: DeviceProgram,
        sources: Sources,
        communicator: Communicator,
        given: Mapping,
        seed: Seed | None = None,
        in_place: TablesInPlace = NOT_IN_PLACE,
    ):
        """Write all instructions.

        Args:
          program: to be written.
          sources: of the function that was traced.
          communicator: between the devices.
          given: by name of a tensor that is fed, or of a variable, what the devices hold of it.
          seed: of random numbers in this call; None if the program draws none.
          in_place: variables that are given as such, and not by their values.
        """
        self.held: MutableMapping[str, PerDevice] = dict(given)
        self._program = program
        self._sources = sources
        self._communicator = communicator
        self._seed = seed
        self._relayouts = Relayouts(communicator)
        self._devices = communicator.devices.local
        self._in_place = in_place
        # Updates in place, which come last: instruction and inputs.
        self._last: list[tuple[Instruction, list[PerDevice]]] = []
        self._write(OUTSIDE)

    def _write(self, block: str) -> None:
        """Write the instructions of a block, with the loops and conditionals in it."""
        done: set[str] = set()
        for one in self._program.blocks.get(block, ()):
            region = self._program.control_flow.by_end.get(one.operation.name)
            if region is not None and region.name not in done:
                done.add(region.name)
                self._region(region)
            if one.operation.kind == MERGE:
                continue
            if not one.operation.inputs and one.operation.kind in _MADE:
                self._source(one)
            else:
                self._run(one)

    def _region(self, region: Region) -> None:
        """Write a loop or a conditional: one for each device, or one in which they communicate.

        The latter is one operation of TensorFlow, which runs each tensor's part of it where the
        tensor is, so a device can wait for what another one makes in the same trip.
        """
        together = region.name in self._program.communicating
        write = self._loop if region.carried else self._conditional
        made: dict[str, dict[int, Any]] = {}
        for devices in [self._devices] if together else [(one,) for one in self._devices]:
            with tf.device(None if together else self._communicator.devices.names[devices[0]]):
                for name, held in write(region, devices).items():
                    made.setdefault(name, {}).update(held)
        self.held.update(made)

    def _loop(self, region: Region, devices: Sequence[int]) -> dict[str, PerDevice]:
        names = [entered for entered, _ in region.carried]
        # The number of the trip, where something is drawn, so that the draws differ.
        trip = [tf.zeros([], tf.int64)] if region.name in self._program.drawing else []

        def within(values: Sequence[Any], block: str) -> Emission:
            one = self._within(devices)
            for number in values[: len(trip)]:
                assert self._seed is not None
                one._seed = self._seed.in_trip(number)
            one.held.update(self._by_name(names, devices, values[len(trip) :]))
            one._write(block)
            return one

        def condition(*values: Any) -> Any:
            decided = within(values, region.blocks[0]).held[region.predicate]
            first, *others = (decided[device] for device in devices)
            # All devices decide alike. What the others do for it has to run, too, since devices of
            # other processes may wait for that.
            with tf.control_dependencies(others):
                return tf.identity(first) if others else first

        def body(*values: Any) -> list[Any]:
            one = within(values, region.blocks[1])
            made = _flat(devices, [one._read(self._program.carried[name]) for name in names])
            return [*(number + 1 for number in values[: len(trip)]), *made]

        start = [*trip, *_flat(devices, [self.held[name] for name in names])]
        made = tf.while_loop(condition, body, start, name=f"{traffic.LOOP}{region.trips}")
        return self._by_name(names, devices, tf.nest.flatten(made)[len(trip) :])

    def _conditional(self, region: Region, devices: Sequence[int]) -> dict[str, PerDevice]:
        ends = [self._program.by_name[name] for name in region.ends]

        def branch(number: int) -> list[Any]:
            one = self._within(devices)
            one._write(region.blocks[number])
            return _flat(devices, [one._read(end.reads[number]) for end in ends])

        predicate = self.held[region.predicate][devices[0]]
        branches = (functools.partial(branch, number) for number in range(2))
        made = tf.cond(predicate, *branches, name=traffic.CONDITIONAL)
        names = [one.operation.outputs[0].name for one in ends]
        return self._by_name(names, devices, tf.nest.flatten(made))

    def _by_name(
        self, names: Sequence[str], devices: Sequence[int], values: Iterable[Any]
    ) -> dict[str, PerDevice]:
        """Return what devices hold of tensors, of values in the order of `_flat`."""
        rest = iter(values)
        found: dict[str, PerDevice] = {
            name: {device: next(rest) for device in devices} for name in names
        }
        if len(devices) == 1:
            return found
        # A tensor of a loop or conditional has no device of its own, and `traffic` counts by them.
        return {
            name: self._communicator.each(held, lambda _, one: tf.identity(one))
            for name, held in found.items()
        }

    def _within(self, devices: Sequence[int]) -> Emission:
        """Return an emission of some devices in a body, which reads what this one has written."""
        one = copy.copy(self)
        one.held = collections.ChainMap({}, self.held)
        one._devices = tuple(devices)
        one._relayouts = Relayouts(self._communicator)
        return one

    def _read(self, read: Read) -> PerDevice:
        """Return what the devices hold of a tensor, in the layout in which it is read."""
        held = self.held[read.tensor]
        mine = {device: held[device] for device in self._devices}
        return self._relayouts.run(read.tensor, read.relayout, mine)

    def results(self) -> dict[str, PerDevice]:
        """Return what the devices hold of each returned tensor."""
        return {name: self.held[one.tensor] for name, one in self._program.results.items()}

    def observed(self) -> dict[str, PerDevice]:
        """Return what the devices hold of each tensor that effects read."""
        return {name: self.held[one.tensor] for name, one in self._program.observed.items()}

    def writes(self) -> dict[str, PerDevice]:
        """Update variables in place, and return what the devices finally hold of the others."""
        found = {
            name: self._read(one)
            for name, one in self._program.writes.items()
            if name not in self._in_place.variables
        }
        for one, read in self._last:
            for device, (local, inputs) in self._given(one, read).items():
                with tf.device(self._communicator.devices.names[device]):
                    KERNELS.get(one.operation.kind, same)(local, *inputs)
        return found

    def _source(self, one: Instruction) -> None:
        name = one.operation.outputs[0].name
        if name in self.held:
            return
        layout = one.strategy.outputs[0]
        if name not in self._sources.constants:
            raise LayoutError(f"{one.operation} has no value, neither fed nor captured")
        value = self._sources.constants[name]
        found = {}
        for device in self._devices:
            with tf.device(self._communicator.devices.names[device]):
                at = layout.slice_of(device)
                if isinstance(value, np.ndarray):
                    found[device] = tf.constant(value[at])
                    continue
                # Each call sends this tensor to its device, as it sends fed tensors, in whose scope
                # it is. (A name with a slash at the end is an existing scope.)
                with tf.name_scope(f"{traffic.FED}/"):
                    found[device] = tf.identity(value[at] if at else value)
        self.held[name] = found

    def _run(self, one: Instruction) -> None:
        read = [self._read(each) for each in one.reads]
        if one.operation.name in self._in_place.updates:
            self._last.append((one, read))
            return
        kernel = KERNELS.get(one.operation.kind, same)
        made = _in_step(self._communicator, one, kernel, self._given(one, read))
        for o, tensor in enumerate(one.operation.outputs):
            self.held[tensor.name] = {
                device: _checked(one, o, mine[o]) for device, mine in made.items()
            }

    def _given(
        self, one: Instruction, read: Sequence[PerDevice]
    ) -> dict[int, tuple[LocalOperation, list[Any]]]:
        """Return, for each device, its part of an operation, and its inputs."""
        origin = self._sources.origins.get(one.operation.name)
        _check_state(one, origin)
        mesh = self._program.mesh
        return {
            device: (
                LocalOperation(one, origin, mesh, device, self._seed),
                [each[device] for each in read],
            )
            for device in self._devices
        }


def _flat(devices: Sequence[int], held: Iterable[PerDevice]) -> list[Any]:
    """Return what devices hold of tensors, as one list."""
    return [each[device] for each in held for device in devices]


def _in_step(
    communicator: Communicator,
    one: Instruction,
    kernel: Any,
    given: Mapping[int, tuple[LocalOperation, list[Any]]],
) -> dict[int, Sequence[Any]]:
    """Run a kernel on all devices in step, so that they exchange together where it asks."""
    left = list(one.strategy.forward)
    made: dict[int, Sequence[Any]] = {}
    running: dict[int, Iterator[Any]] = {}
    asked: dict[int, Any] = {}

    def go(device: int, start: Any) -> None:
        with tf.device(communicator.devices.names[device]):
            try:
                asked[device] = start()
            except StopIteration as end:
                made[device] = end.value

    for device, (local, inputs) in given.items():
        with tf.device(communicator.devices.names[device]):
            found = kernel(local, *inputs)
        if hasattr(found, "send"):
            running[device] = found
            go(device, found.__next__)
        else:
            made[device] = found
    while asked:
        answers = _exchanged(communicator, one, given, asked, left)
        asked.clear()
        for device, answer in answers.items():
            go(device, lambda g=running[device], a=answer: g.send(a))
    if left:
        raise LayoutError(
            f"{one.operation} cannot run as {one.strategy}: {left[0]} has no kernel; give it "
            f"another strategy by constraints, as {{{one.operation.name!r}: 'replicate'}}"
        )
    return made


def _exchanged(
    communicator: Communicator,
    one: Instruction,
    given: Mapping[int, tuple[LocalOperation, list[Any]]],
    asked: Mapping[int, Any],
    left: list[InnerAllReduce | InnerHalo],
) -> dict[int, Any]:
    """Return what each device asked for: a reduced tensor, or rows of its neighbours."""
    request = next(iter(asked.values()))
    axes = next(iter(given.values()))[0].axes(request[0])
    charged = left.pop(0) if left else None
    if isinstance(request, Neighbours):
        fits = isinstance(charged, InnerHalo) and charged.axes == axes
        does = "exchanges rows"
    else:
        reduction = request[1]
        both = reduction, axes
        fits = isinstance(charged, InnerAllReduce) and (charged.reduction, charged.axes) == both
        does = f"reduces {reduction}"
    if not fits:
        raise LayoutError(
            f"{one.operation} as {one.strategy} {does} over {axes}, and its plan has "
            f"{charged}; this is an error of tf_fuse, please report it"
        )
    if isinstance(charged, InnerHalo):
        held = {device: each.tensor for device, each in asked.items()}
        return communicator.neighbours(held, axes, request.dimension, charged.borders)
    tensors = {device: each[2] for device, each in asked.items()}
    return communicator.all_reduce(tensors, axes, reduction)


def _checked(one: Instruction, output: int, tensor: Any) -> Any:
    """Return a tensor that an instruction made, with the shape that its strategy says."""
    if tensor.dtype == tf.variant:  # A list of a loop, which all devices have alike.
        return tensor
    layout, wanted = one.strategy.outputs[output], one.operation.outputs[output]
    shape = layout.slice_shape
    if not tensor.shape.is_compatible_with(shape) or tensor.dtype.base_dtype.name != wanted.dtype:
        raise LayoutError(
            f"{one.operation} as {one.strategy} makes {tensor.dtype.name}{tensor.shape} of its "
            f"slices, and the plan has {wanted.dtype}{list(shape)}, {layout}; give it another "
            f"strategy by constraints, as {{{one.operation.name!r}: 'replicate'}}"
        )
    if not tensor.shape.is_fully_defined():
        tensor = tf.ensure_shape(tensor, shape)
    return tensor


def _check_state(one: Instruction, origin: Any) -> None:
    """Check that operations that all devices repeat have no random or other state."""
    if origin is None or one.operation.kind in STATELESS:
        return
    found = own_state(origin.operation)
    if found is not None:
        draw = _REPLACEMENTS.get(found.type, _OTHER_DRAW if "Random" in found.type else "")
        seeded = f"take {draw} with a seed that is fed or in a variable, or " if draw else ""
        raise LayoutError(
            f"{one.operation} has a state of its own ({found.type}), which each device would have "
            f"too: their values would differ; {seeded}call it outside and feed what it makes"
        )
