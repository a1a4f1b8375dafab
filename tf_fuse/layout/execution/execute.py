# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a plan: the function that was planned, on the devices of a mesh.

run = layout.execute(plan, ["CPU:0", "CPU:1"])
loss = run(x, labels)
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type as function_types
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import function_type_utils
from tensorflow.python.ops import resource_variable_ops

from tf_fuse._tensorflow import feature_names, features
from tf_fuse.layout.execution import run_side_effects, tables_in_place, traffic
from tf_fuse.layout.execution.communication.communicator import Communicator, PerDevice
from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives
from tf_fuse.layout.execution.communication.relayouts import relayout
from tf_fuse.layout.execution.device_program import DeviceProgram, program_of
from tf_fuse.layout.execution.devices import devices_of
from tf_fuse.layout.execution.emission import Emission
from tf_fuse.layout.execution.kernels.local_operation import Seed
from tf_fuse.layout.execution.process_data import ProcessParts, batches_of, shapes_of
from tf_fuse.layout.execution.variables import variable as variables
from tf_fuse.layout.execution.variables.local_shards import VariableShards
from tf_fuse.layout.execution.variables.read_write_lock import LOCK
from tf_fuse.layout.relayout.redistribution import plan_relayout
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from tf_fuse.layout.planning.pipeline import FunctionPlan


#: Those that the program has.
executions: weakref.WeakSet[Execution] = weakref.WeakSet()
_SEED_BITS: Final = 62


class Execution:
    """A function that runs as a plan says; called as the function is.

    Attributes:
      plan: that is run.
      program: the plan, written out.
      devices: that run it.
    """

    def __init__(self, plan: FunctionPlan, devices: Any = None, data_per_process: bool = False):
        """Cut the function's variables into shards, and write the program into a graph.

        Args:
          plan: of `tf_fuse.layout.plan`.
          devices: as of `tf_fuse.layout.execute`.
          data_per_process: likewise.

        Raises:
          LayoutError: as of `tf_fuse.layout.execute`.
        """
        if not features.works(feature_names.LAYOUT):
            raise LayoutError(
                "this TensorFlow or Keras is not one that plans can be executed on: `python -m "
                "tf_fuse doctor` names the member that differs"
            )
        self.plan = plan
        self.program: DeviceProgram = program_of(plan)
        self.devices = devices_of(self.program.mesh, devices)
        rings = ProcessCollectives(self.devices) if self.devices.distributed else None
        self._communicator = Communicator(self.devices, rings)
        self._parts = ProcessParts(self._communicator) if data_per_process else None
        self._part_layouts = self._layouts_of_parts()
        self._sources = plan.function.sources
        self._in_place = tables_in_place.find(self.program, self._sources.origins)
        self._sources.check_variables(self.plan.variables)
        if rings is not None:
            rings.check_same(str(self.program))
            for axes in self.program.halo_axes:
                rings.add_pairs(axes)
        self._shards: dict[str, VariableShards] = {}
        # What random numbers begin with, and the number of the next call, which seeds them.
        self._base = 0
        if self.program.draws:
            own = tf.constant(secrets.randbits(_SEED_BITS), tf.int64)
            self._base = int(self._communicator.of_first(own))
        self._calls = itertools.count()
        before = [
            name
            for name, one in self.variables.items()
            if variables.local_shards_of(one) is not None
        ]
        try:
            self._adopt()
            self._function = self._traced()
        except BaseException:
            # Also if it is interrupted: nobody else could release them.
            for name, one in self.variables.items():
                if name not in before:
                    variables.undo(one)
            raise
        executions.add(self)

    @property
    def variables(self) -> dict[str, Any]:
        """The function's variables, by the plan's names; their values are in shards."""
        return {name: self._sources.variables[name] for name in self.plan.variables}

    @property
    def num_shards(self) -> int:
        """Into how many parts a batch is split; each process feeds one."""
        return 1 if self._parts is None else self._parts.num_shards

    @property
    def shard_id(self) -> int:
        """Which of the parts this process feeds."""
        return 0 if self._parts is None else self._parts.shard_id

    def batches(self, data: Any) -> Iterator[Any]:
        """Return an iterator over arguments for calls, that ends in all processes at once.

        Args:
          data: a `tf.data.Dataset` of the function's arguments, the same in all processes; or a
            callable that takes `num_shards` and `shard_id`, and returns a dataset of this process's
            parts of them.

        Returns:
          Tuples of arguments, with this process's parts.

        Raises:
          LayoutError: `data` is neither; or processes have batches of other shapes, or not the same
            number of them.
        """
        parts = self._parts or ProcessParts(self._communicator)
        dims = batches_of(self._sources.feeds, self.plan.batch if self._parts else {})
        own = iter(parts.of(data, dims))
        for one in parts.together(own, self.plan.function.name, shapes_of):
            yield one if isinstance(one, tuple) else (one,)

    @cached_property
    def traffic(self) -> traffic.Traffic:
        """The bytes that this process's devices receive in one call, read from the graph."""
        return traffic.traffic_of(self._function.graph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function.

        Args:
          *args: as of the function; in several processes the same in all of them, or with
            `data_per_process` this one's part of each.
          **kwargs: likewise.

        Returns:
          The function's results, as ordinary tensors.

        Calls in several threads run at the same time where they write no variables, and are in one
        process; others one after the other. If a call fails in one of several processes, it ends
        in all of them.

        Raises:
          LayoutError: what is fed has another shape or type than planned; or a `tf.function` calls
            a plan that writes variables, draws random numbers, or runs in several processes.
        """
        self._check_caller()
        alone = LOCK.alone() if self.devices.distributed else contextlib.nullcontext()
        with alone, self._communicator.fails_in_all(f"a call of {self.plan.function.name!r}"):
            flat = self._bound(args, kwargs)
            with LOCK.alone() if self.program.writes else LOCK.shared():
                self._check_shards()
                self._communicator.begin_call()
                if self.program.draws:
                    flat.append(tf.constant(next(self._calls), tf.int64))
                with record.stop_recording():
                    made = self._function(*flat)
        made = self._without_gradient(flat, made)
        found = dict(zip(self.program.results, made, strict=True))
        return self._packed([found.get(name or "") for name in self._sources.returned])

    def release(self) -> None:
        """Assemble the variables' values, and give them back to the variables.

        Afterwards the plan does not run any more. In several processes, all must call this at once.
        """
        for variable in self.variables.values():
            variables.release(variable)

    def _adopt(self) -> None:
        for name, layout in self.plan.variables.items():
            variable = self._sources.variables[name]
            self._shards[name] = variables.adopt(name, variable, layout, self._communicator)

    def _traced(self) -> Any:
        """Return the program as a concrete function."""
        tensors = self.plan.function.tensors
        specs = [
            tf.TensorSpec(self._fed_shape(name), tensors[name].dtype)
            for name in self.plan.function.inputs
        ]
        if self.program.draws:
            specs.append(tf.TensorSpec([], tf.int64))
        # The function is kept, since its graph lives as long as it does.
        self._program = tf.function(self._body, input_signature=specs, autograph=False)
        return self._program.get_concrete_function()

    def _check_shards(self) -> None:
        for name, variable in self.variables.items():
            if variables.local_shards_of(variable) is not self._shards[name]:
                raise LayoutError(
                    f"variable {name!r} of {self.plan.function.name!r} was released; execute the "
                    "plan again"
                )
            self._shards[name].check_whole()

    def _check_caller(self) -> None:
        """Check that a call in a graph needs nothing that is done here in each call.

        Raises:
          LayoutError: it does.
        """
        if tf.executing_eagerly():
            return
        reasons = {
            "writes variables": self.program.writes,
            "draws random numbers": self.program.draws,
            "runs in several processes": self.devices.distributed,
        }
        why = [what for what, holds in reasons.items() if holds]
        if why:
            raise LayoutError(
                f"{self.plan.function.name!r} runs by a plan that {' and '.join(why)}, and a "
                "tf.function calls it: each call of such a plan takes a lock and a number, and a "
                "graph would repeat those of its trace; call it outside of the tf.function, or "
                "plan the function around it"
            )

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the tensors that the program is fed."""
        kind: function_types.FunctionType = self._sources.concrete.function_type
        try:
            bound = function_type_utils.canonicalize_function_inputs(args, dict(kwargs), kind)
            flat = kind.unpack_inputs(bound)
        except TypeError:
            # Concrete functions, too, take tensors alone if other arguments have defaults.
            flat = tf.nest.flatten((args, dict(kwargs)), expand_composites=True)
            if len(flat) != len(self._sources.feeds):
                raise
        by_name = dict(zip(self._sources.feeds, flat, strict=True))
        return [self._fed(name, by_name[name]) for name in self.plan.function.inputs]

    def _layouts_of_parts(self) -> dict[str, TensorLayout]:
        """Return the layouts that the processes' parts of inputs are; of those with a batch."""
        if self._parts is None:
            return {}
        return {
            name: self._parts.layout(name, self.plan.function.tensors[name].shape, at)
            for name in self.plan.function.inputs
            if (at := self.plan.batch.get(name)) is not None
        }

    def _fed_shape(self, name: str) -> tuple[int, ...]:
        shape = self.plan.function.tensors[name].shape
        if self._parts is None:
            return shape
        return self._parts.part_shape(shape, self.plan.batch.get(name))

    def _fed(self, name: str, value: Any) -> Any:
        wanted = self.plan.function.tensors[name]
        # Read variables before taking the lock: a variable in shards takes it as well.
        given = tf.is_tensor(value) and not isinstance(value, tf.Variable)
        tensor = value if given else tf.convert_to_tensor(value, wanted.dtype)
        shape = self._fed_shape(name)
        if tensor.dtype.name != wanted.dtype or tensor.shape != shape:
            whole = (
                f"the plan is for {wanted.dtype}{list(shape)}"
                if shape == wanted.shape
                else f"each of {self.num_shards} processes feeds its part, {wanted.dtype}"
                f"{list(shape)} of {list(wanted.shape)}"
            )
            raise LayoutError(
                f"input {name!r} of {self.plan.function.name!r} is {tensor.dtype.name}"
                f"{list(tensor.shape)}, and {whole}; "
                "feed one of that shape and type, or plan for this one"
            )
        return tensor

    def _body(self, *fed: Any) -> list[Any]:
        given: dict[str, PerDevice] = {}
        layouts = self.plan.inputs
        seed = Seed(self._base, fed[-1]) if self.program.draws else None
        fed = fed[: len(self.plan.function.inputs)]
        with tf.name_scope(traffic.FED):
            for name, tensor in zip(self.plan.function.inputs, fed, strict=True):
                given[name] = self._cut(name, tensor, layouts[name])
        for name, shards in self._shards.items():
            if name in self._in_place.variables:
                given[name] = shards.variables
                continue
            given[name] = self._communicator.each(shards.variables, lambda _, one: one.read_value())
        emission = Emission(
            self.program, self._sources, self._communicator, given, seed, self._in_place
        )
        with tf.name_scope(traffic.EFFECTS):
            whole = {
                name: self._whole(held, self.program.observed[name].layout)
                for name, held in emission.observed().items()
            }
            done = run_side_effects.run(self._sources.effects, whole)
        # If a check fails, variables keep their values.
        with tf.control_dependencies(done):
            for name, held in emission.writes().items():
                self._communicator.each(held, self._shards[name].write)
        with tf.name_scope(traffic.RETURNED):
            return [
                self._whole(held, self.program.results[name].layout)
                for name, held in emission.results().items()
            ]

    def _cut(self, name: str, tensor: Any, layout: TensorLayout) -> PerDevice:
        """Return a tensor that is fed, as the devices hold it; each slice is brought there once."""
        parts, of_parts = self._parts, self._part_layouts.get(name)
        if parts is not None and of_parts is not None:
            at = self.plan.batch[name]
            assert at is not None
            with tf.device(self.devices.names[self.devices.first]):
                slices = parts.cut(tensor, of_parts, at)
            held = self._communicator.each(slices, lambda _, one: tf.identity(one))
            if of_parts == layout:
                return held
            links, steps = self.plan.rates.links, self.plan.steps
            item_bytes = self.plan.function.tensors[name].item_bytes
            path = plan_relayout(of_parts, layout, item_bytes, links, steps)
            return relayout(self._communicator, path, held)
        with tf.device(self.devices.names[self.devices.first]):
            slices = {
                device: tensor[layout.slice_of(device)] if any(layout.splits) else tensor
                for device in self.devices.local
            }
        return self._communicator.each(slices, lambda _, one: tf.identity(one))

    def _whole(self, held: PerDevice, layout: TensorLayout) -> Any:
        """Return a result, put together on this process's first device."""
        target = TensorLayout(layout.mesh, layout.shape)
        plan = None if layout == target else plan_relayout(layout, target)
        return relayout(self._communicator, plan, held)[self.devices.first]

    def _without_gradient(self, fed: Sequence[Any], made: Sequence[Any]) -> Sequence[Any]:
        """Return results that fail when a gradient through them is asked for.

        It would be None for the variables, whose values are in shards, and the trace does not keep
        gradients that a program defines.
        """
        if not made or (tf.executing_eagerly() and not record.could_possibly_record()):
            return made
        sources = list(fed)
        for variable in self.variables.values():
            resource_variable_ops.variable_accessed(variable)
            sources.append(variable.handle)

        @tf.custom_gradient
        def results(*_: Any) -> Any:
            return list(made), self._no_gradient

        return results(*sources)

    def _no_gradient(self, *upstream: Any) -> Any:
        del upstream
        raise LayoutError(
            f"a gradient through {self.plan.function.name!r} is asked for, which runs by a plan "
            "and has none; plan the function that asks for the gradient"
        )

    def _packed(self, flat: Sequence[Any]) -> Any:
        structure = self._sources.concrete.structured_outputs
        values = iter(flat)
        made = [
            next(values) if isinstance(one, tf.Tensor) else one
            for one in tf.nest.flatten(structure, expand_composites=True)
        ]
        return tf.nest.pack_sequence_as(structure, made, expand_composites=True)
