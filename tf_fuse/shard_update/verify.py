# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Looks over a function whose update was cut, before it runs in the place of the original.

It knows nothing of how the rewrite goes about its work, only what must hold whatever that does: the
function is well formed and returns what it did, variables are written by whom they were, nobody
touches a variable whose value is elsewhere, and replicas meet in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.graph_view import GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.rewrite import SCOPE, Slot
from tf_fuse.shard_update.verify_gather import what_is_wrong

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
_READS_SHAPE = frozenset({"VariableShape", "VarIsInitializedOp"})
_ASSIGNS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
_HANDS_ON = frozenset({"Identity", "IdentityN"})
_LOOPS = frozenset({"While", "StatelessWhile"})
# Whose first input is no argument of the functions that they call.
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})

_RESOURCE = 20  # DT_RESOURCE

_REDUCE = "CollectiveReduceV2"
_SCATTER, _GATHER = "TfFuse>ReduceScatter", "TfFuse>AllGather"
_OURS = frozenset({_SCATTER, _GATHER, "TfFuse>AllReduce"})


class _WrongError(Exception):
    """Says what is wrong with a function."""


@dataclass(frozen=True)
class Original:
    """A function before it is cut.

    Attributes:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was made of, which has the shapes of its inputs.
      function: the `FunctionDef` of a function that it calls, or None.
    """

    definition: Any
    graph: Any
    function: Callable[[str], Any | None]


def verify(
    original: Original, twin: Any, slots: Sequence[Slot], functions: Sequence[Any] = ()
) -> str:
    """Compares a function whose update was cut with the original.

    Args:
      original: the function as it was traced.
      twin: the `FunctionDef` that is to be run.
      slots: the variables that have parts.
      functions: `FunctionDef`s that the twin calls, and that are made with it.

    Returns:
      What is wrong with the twin, in words; "" if nothing is.
    """
    made = {function.signature.name: function for function in functions}
    before = _Bodies(original.function)
    after = _Bodies(lambda name: made.get(name) or original.function(name))
    try:
        for view in after.all_of(twin):
            _check_nodes(view)
        inputs = list(original.graph.inputs)
        whole = _Body(original.definition, original.graph, inputs)
        _check_body(before, whole, after, _Body(twin, original.graph, inputs), frozenset())
        _check_slots(before, original.definition, after, twin, slots)
        _check_writers(before, original.definition, after, twin, slots)
        if wrong := what_is_wrong(after, after.view(twin), slots, _before):
            return wrong
    except _WrongError as error:
        return str(error)
    return ""


class _Bodies:
    """Functions and those that they call."""

    def __init__(self, function: Callable[[str], Any | None]):
        self._function = function
        self._views: dict[int, tuple[Any, GraphView]] = {}
        self._meets: dict[str, bool] = {}

    def view(self, definition: Any) -> GraphView:
        """The graph of a function."""
        if id(definition) not in self._views:
            self._views[id(definition)] = definition, GraphView(definition, self._op_def)
        return self._views[id(definition)][1]

    def called(self, node: Any) -> list[Any]:
        """The functions that a node calls, as far as they are known."""
        names = [node.op]
        for key in sorted(node.attr):
            value = node.attr[key]
            names += [function.name for function in [value.func, *value.list.func]]
        return [body for name in names if name and (body := self._function(name)) is not None]

    def all_of(self, definition: Any) -> Iterator[GraphView]:
        """The graphs of a function and of all that it calls, each once."""
        waiting, seen = [definition], set()
        while waiting:
            one = waiting.pop()
            if one.signature.name not in seen:
                seen.add(one.signature.name)
                yield self.view(one)
                waiting += [body for node in one.node_def for body in self.called(node)]

    def is_met(self, node: Any) -> bool:
        """Whether replicas meet in a node, or in a function that it calls."""
        if node.op.startswith("Collective") or node.op in _OURS:
            return True
        for body in self.called(node):
            name = body.signature.name
            if name not in self._meets:
                self._meets[name] = any(map(self.is_met, body.node_def))
            if self._meets[name]:
                return True
        return False

    def uses(self, view: GraphView, resource: str, path: str = "") -> Iterator[tuple[str, Any]]:
        """The nodes that use a variable, here and in functions that are called, with their path."""
        waiting = [resource]
        while waiting:
            tensor = waiting.pop()
            for use in view.uses(tensor):
                node = view.nodes[use.node]
                index = use.index - (node.op in _BRANCHES)
                if node.op in _HANDS_ON:
                    waiting.append(view.outputs(node)[use.index])
                    continue
                bodies = [self.view(body) for body in self.called(node)]
                if not bodies or any(index >= len(body.arguments) for body in bodies):
                    yield path + node.name, node
                    continue
                for i, body in enumerate(bodies):
                    yield from self.uses(body, body.arguments[index], f"{path}{node.name}.{i}/")
                if node.op in _LOOPS:
                    waiting.append(view.outputs(node)[use.index])

    def writers(self, view: GraphView, resource: str) -> list[str]:
        """The paths of the nodes that do more with a variable than to read it."""
        harmless = _READS | _READS_SHAPE
        return sorted(
            {
                path
                for path, node in self.uses(view, resource)
                # (Collectives take tokens, which no collective of ours needs.)
                if node.op not in harmless and not self.is_met(node)
            }
        )

    def handles(self, view: GraphView, shared_name: str) -> Iterator[tuple[GraphView, Any]]:
        """The nodes that make a handle of a variable, here and in functions that are called."""
        for node in view.function.node_def:
            if node.op == "VarHandleOp" and node.attr["shared_name"].s.decode() == shared_name:
                yield view, node
            for body in self.called(node):
                yield from self.handles(self.view(body), shared_name)

    def _op_def(self, name: str) -> Any:
        from tensorflow.python.framework import op_def_registry

        body = self._function(name)
        found = op_def_registry.get(name) if body is None else body.signature
        if found is None:
            raise _WrongError(f"there is no operation {name}")
        return found


# --- Nodes ---------------------------------------------------------------------------------------


def _check_nodes(view: GraphView) -> None:
    """Nodes have names of their own, read what there is, and do not wait for themselves."""
    if len(view.nodes) != len(view.function.node_def):
        raise _WrongError(f"two nodes of {view.function.signature.name} have one name")
    made = {tensor for node in view.nodes.values() for tensor in view.outputs(node)}
    made.update(view.arguments)
    known = view.nodes.keys() | set(view.arguments)
    for node in view.nodes.values():
        for tensor in data_inputs(node):
            if tensor not in made:
                raise _WrongError(f"{node.name} reads {tensor}, which there is not")
        for name in control_inputs(node):
            if name not in known:
                raise _WrongError(f"{node.name} waits for {name}, which there is not")
    for tensor in view.results:
        if tensor not in made:
            raise _WrongError(f"the function returns {tensor!r}, which there is not")
    for name in view.function.control_ret.values():
        if name not in view.nodes:
            raise _WrongError(f"the function waits for {name}, which there is not")
    try:
        for _ in view.in_order():
            pass
    except ValueError as error:
        raise _WrongError(str(error)) from None


# --- Bodies --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Body:
    """A function as it is called.

    Attributes:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was traced to, or None.
      inputs: tensors with the shapes of its arguments; None where they are not known.
    """

    definition: Any
    graph: Any
    inputs: list[Any]


def _check_body(
    before: _Bodies, old: _Body, after: _Bodies, new: _Body, outside: frozenset[str]
) -> None:
    """Compares a function, and those that it calls, with what they were.

    Args:
      before: all functions as they were.
      old: the function as it was.
      after: all functions.
      new: the function.
      outside: all-reduces that are cut in front of where it is called.
    """
    was, now = old.definition, new.definition
    arguments = list(now.signature.input_arg)
    # (A branch may be given more.)
    if arguments[: len(was.signature.input_arg) if outside else None] != list(
        was.signature.input_arg
    ):
        raise _WrongError("the function's input_arg is not what it was")
    for part in ("output_arg", "control_output"):
        if list(getattr(was.signature, part)) != list(getattr(now.signature, part)):
            raise _WrongError(f"the function's {part} is not what it was")
    if dict(was.control_ret).keys() != dict(now.control_ret).keys():
        raise _WrongError("the function's control_ret is not what it was")
    graphs = _check_types(before, old, after, new)
    view, other = before.view(was), after.view(now)
    cut = _check_meetings(before, view, after, other, outside)
    for name, node in view.nodes.items():
        if name not in other.nodes:
            continue
        calls = after.called(other.nodes[name])
        for one, another in zip(before.called(node), calls, strict=False):
            if one.signature.name != another.signature.name:
                inner = _called(node, other.nodes[name], old, one, another, graphs)
                _check_body(before, inner[0], after, inner[1], outside | cut)


def _called(
    node: Any, other: Any, caller: _Body, one: Any, another: Any, graphs: tuple[_Graph, _Graph]
) -> tuple[_Body, _Body]:
    """A function that a node calls, as it was, and as it is."""
    functions = getattr(caller.graph, "_functions", {})
    graph = getattr(functions.get(one.signature.name), "graph", None)
    count = len(one.signature.input_arg)
    inputs = [None] * count if graph is None else list(graph.inputs)
    first = int(other.op in _BRANCHES)
    shapes = [graphs[0].tensor(t).shape.as_proto() for t in data_inputs(node)[first:]]
    given = [graphs[1].tensor(tensor) for tensor in data_inputs(other)[first:]]
    # What is passed otherwise than before has other shapes than were traced.
    now = [
        known if i < len(inputs) and shapes[i] == tensor.shape.as_proto() else tensor
        for i, tensor in enumerate(given)
        for known in [inputs[i] if i < len(inputs) else None]
    ]
    return _Body(one, graph, inputs), _Body(another, graph, now)


def _check_types(before: _Bodies, old: _Body, after: _Bodies, new: _Body) -> tuple[_Graph, _Graph]:
    """TensorFlow makes a graph of the function, and finds the shapes and types of before."""
    was, now = _Graph(before, old), _Graph(after, new)
    for argument in old.definition.signature.output_arg:
        one = was.tensor(old.definition.ret[argument.name])
        other = now.tensor(new.definition.ret[argument.name])
        _check_like(f"the result {argument.name}", one.dtype, one.shape, other)
    view = after.view(new.definition)
    for name in sorted(view.nodes):
        node = view.nodes[name]
        if node.op not in _ASSIGNS:
            continue
        variable = view.resource(data_inputs(node)[0])
        if variable in view.arguments and (held := now.held(variable)) is not None:
            _check_like(f"what {name} assigns to {variable}", *held, now.tensor(node.input[1]))
    return was, now


def _check_like(what: str, dtype: Any, shape: Any, tensor: Any) -> None:
    if tensor.dtype != dtype:
        raise _WrongError(f"{what} is {tensor.dtype.name}, not {dtype.name}")
    is_same = tensor.shape == shape if shape.is_fully_defined() else True
    if not is_same or not tensor.shape.is_compatible_with(shape):
        raise _WrongError(f"{what} has the shape {tensor.shape}, not {shape}")


class _Graph:
    """What TensorFlow's shape inference says of a function."""

    def __init__(self, bodies: _Bodies, body: _Body):
        """Makes a graph.

        Args:
          bodies: the functions that it calls.
          body: the function.

        Raises:
          _WrongError: TensorFlow makes none of it.
        """
        from tensorflow.python.framework import errors, importer, ops

        graph_def, self._names = _flat(bodies, body.definition)
        read = {tensor for node in graph_def.node for tensor in node.input}
        self._graph = ops.Graph()
        with self._graph.as_default():
            self._arguments = _placeholders(body)
            by_name = {f"{name}:0": tensor for name, tensor in self._arguments.items()}
            by_name.update((f"^{name}", tensor) for name, tensor in self._arguments.items())
            inputs = {name: tensor for name, tensor in by_name.items() if name in read}
            try:
                importer.import_graph_def(graph_def, input_map=inputs, name="")
            except (ValueError, TypeError, errors.OpError) as error:
                raise _WrongError(f"TensorFlow does not take it: {error}") from None

    def tensor(self, name: str) -> Any:
        """A tensor, by its name in the function."""
        if name in self._arguments:
            return self._arguments[name]
        return self._graph.get_tensor_by_name(self._names[name])

    def held(self, argument: str) -> tuple[Any, Any] | None:
        """Type and shape of the value of an argument that is a variable; None: not known."""
        from tensorflow.python.framework import dtypes, tensor_shape
        from tensorflow.python.ops import handle_data_util

        data = handle_data_util.get_resource_handle_data(self._arguments[argument])
        if data is None or not data.is_set or not data.shape_and_type:
            return None
        (one, *_) = data.shape_and_type
        return dtypes.as_dtype(one.dtype), tensor_shape.TensorShape(one.shape)


def _flat(bodies: _Bodies, definition: Any) -> tuple[Any, dict[str, str]]:
    """A function's body as a graph without its arguments, and its tensors' names there."""
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.framework import versions

    view = bodies.view(definition)
    names = {argument: f"{argument}:0" for argument in view.arguments}
    for node in view.nodes.values():
        names.update((t, f"{node.name}:{i}") for i, t in enumerate(view.outputs(node)))
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = versions.GRAPH_DEF_VERSION
    graph_def.node.extend(definition.node_def)
    for node in graph_def.node:
        node.input[:] = [names.get(tensor, tensor) for tensor in node.input]
        # (They are placed with arguments, which are not in the graph.)
        node.attr.pop("_class", None)
    library = {view.function.signature.name: view.function for view in bodies.all_of(definition)}
    del library[definition.signature.name]
    graph_def.library.function.extend(library[name] for name in sorted(library))
    return graph_def, names


def _placeholders(body: _Body) -> dict[str, Any]:
    """A function's arguments in the default graph."""
    from tensorflow.python.ops import array_ops, handle_data_util

    arguments = body.definition.signature.input_arg
    found = {}
    for argument, tensor in zip(arguments, body.inputs, strict=True):
        shape = None if tensor is None else tensor.shape
        found[argument.name] = array_ops.placeholder(argument.type, shape, name=argument.name)
        data = None if tensor is None else handle_data_util.get_resource_handle_data(tensor)
        if data is not None and data.is_set:
            handle_data_util.set_handle_data(found[argument.name], data)
    return found


# --- Where replicas meet -------------------------------------------------------------------------


def _check_meetings(
    before: _Bodies, old: GraphView, after: _Bodies, new: GraphView, outside: frozenset[str]
) -> frozenset[str]:
    """All collectives are there, in the order of before, and the new ones are where they belong.

    Returns:
      The all-reduces that are cut.
    """
    was = {name for name, node in old.nodes.items() if before.is_met(node)}
    now = {name for name, node in new.nodes.items() if after.is_met(node)}
    if lost := sorted(was - now):
        raise _WrongError(f"the collective {lost[0]} is gone")
    cut = frozenset(n for n in was if new.nodes[n].op != old.nodes[n].op == _REDUCE)
    gathers: dict[str, list[str]] = {}
    first: set[str] = set()  # All-reduces that wait for gathers.
    for name in sorted(now - was):
        for one, group in _made(after, new, new.nodes[name]):
            pack = one.name.partition(f"/{SCOPE}")[0]
            if pack in outside - was:
                continue  # (The caller's; looked at there.)
            if pack not in cut or pack == one.name:
                raise _WrongError(f"{one.name} ({one.op}) belongs to no all-reduce that is cut")
            if _values(new, group) != _values(old, data_inputs(old.nodes[pack])[1:4]):
                raise _WrongError(f"{one.name} is of another group than {pack}")
            if one.op == _GATHER and _groups(one) != _groups(new.nodes[pack]):
                raise _WrongError(
                    f"{one.name} is in {_groups(one)} groups, and {pack} in "
                    f"{_groups(new.nodes[pack])}"
                )
            if one.op == _GATHER and _before(new, pack, {name}):
                first.add(pack)
            elif one.op == _GATHER:
                gathers.setdefault(pack, []).append(one.name)
                if pack not in _before(new, name, {pack}):
                    raise _WrongError(f"{name} does not wait for {pack}")
    for name in sorted(was):
        _check_meeting(old.nodes[name], new.nodes[name], gathers.get(name, []), name in first)
        if lost := sorted(_before(old, name, was) - _before(new, name, was)):
            raise _WrongError(f"{name} does not wait for {lost[0]} any more")
    return cut


def _values(view: GraphView, tensors: Sequence[str]) -> list[Any]:
    """Tensors, constants by their values."""
    nodes = [view.producer(tensor) for tensor in tensors]
    return [
        node.attr["value"] if node is not None and node.op == "Const" else tensor
        for node, tensor in zip(nodes, tensors, strict=True)
    ]


def _made(after: _Bodies, view: GraphView, node: Any) -> list[tuple[Any, list[str]]]:
    """A collective, or those in a function that is called; with what tells their group here."""
    if node.op in _OURS or node.op.startswith("Collective"):
        return [(node, data_inputs(node)[-3:])]
    inputs = data_inputs(node)[node.op in _BRANCHES :]
    found = []
    for body in map(after.view, after.called(node)):
        here = dict(zip(body.arguments, inputs, strict=False))
        for one in filter(after.is_met, body.nodes.values()):
            group = [here.get(tensor, "") for tensor in data_inputs(one)[-3:]]
            found.append((one, group))
    return found


def _check_meeting(old: Any, new: Any, gathers: Sequence[str], is_first: bool) -> None:
    """A collective is as it was, or an all-reduce is cut."""
    if (old.op, new.op) == (_REDUCE, _SCATTER):
        # (What is gathered in front of it need not be behind it.)
        if len(gathers) != 1 and not (is_first and not gathers):
            raise _WrongError(f"{old.name} is cut, and gathered {len(gathers)} times")
        if data_inputs(new)[-3:] != data_inputs(old)[1:4]:
            raise _WrongError(f"{new.name} is of another group than it was")
        return
    calls = not old.op.startswith("Collective") and old.op not in _OURS
    is_same = old.op == new.op and len(data_inputs(old)) == len(data_inputs(new))
    if not is_same or (not calls and _attributes(old) != _attributes(new)):
        raise _WrongError(f"the collective {old.name} ({old.op}) is not what it was ({new.op})")


def _groups(node: Any) -> int:
    """In how many groups the members of a collective are."""
    return int(node.attr["groups"].i) if "groups" in node.attr else 1


def _attributes(node: Any) -> dict[str, Any]:
    return {key: node.attr[key] for key in node.attr if key != "_output_shapes"}


def _before(view: GraphView, name: str, wanted: set[str]) -> set[str]:
    """Those of some nodes that a node waits for."""
    seen: set[str] = set()
    waiting = list(view.nodes[name].input)
    while waiting:
        one = waiting.pop()
        producer = view.nodes.get(one.lstrip("^").partition(":")[0])
        if one in seen or producer is None:
            continue
        seen.add(one)
        if producer.op == "IdentityN" and not one.startswith("^"):
            # What only travels together does not wait for each other.
            waiting.append(data_inputs(producer)[view.output_index(one)])
            waiting += [f"^{before}" for before in control_inputs(producer)]
        elif (whole := f"^{producer.name}") == one or whole not in seen:
            seen.add(whole)
            waiting += producer.input
    return {tensor[1:] for tensor in seen if tensor.startswith("^")} & wanted


# --- Variables -----------------------------------------------------------------------------------


def _check_slots(
    before: _Bodies, old: Any, after: _Bodies, new: Any, slots: Sequence[Slot]
) -> None:
    """Parts are used in the place of variables, which nobody uses."""
    view = after.view(new)
    for slot in slots:
        for path, node in after.uses(view, slot.argument):
            raise _WrongError(f"{path} ({node.op}) uses {slot.argument}, which is in parts")
        wrote = len(before.writers(before.view(old), slot.argument))
        writes = 0
        for body, handle in after.handles(view, slot.shared_name):
            held = [dim.size for dim in handle.attr["shape"].shape.dim]
            if handle.attr["dtype"].type != slot.dtype or held != [slot.end - slot.begin]:
                raise _WrongError(
                    f"{handle.name} has the type {handle.attr['dtype'].type} and the shape {held}, "
                    f"not {slot.dtype} and [{slot.end - slot.begin}]"
                )
            writes += len(after.writers(body, f"{handle.name}:resource:0"))
        if writes != wrote:
            raise _WrongError(f"{slot.argument} had {wrote} writers, and its part has {writes}")


def _check_writers(
    before: _Bodies, old: Any, after: _Bodies, new: Any, slots: Sequence[Slot]
) -> None:
    """Other variables have the writers that they had; of several, one at least is left."""
    cut = {slot.argument for slot in slots}
    for argument in old.signature.input_arg:
        if argument.name in cut or argument.type != _RESOURCE:
            continue
        was = before.writers(before.view(old), argument.name)
        now = after.writers(after.view(new), argument.name)
        if not set(now) <= set(was) or bool(was) != bool(now):
            raise _WrongError(f"{argument.name} is written by {now}, and was by {was}")
