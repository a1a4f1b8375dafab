# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Follow the rows of distinct numbers; the data says how many there are.

Optimizers add up the gradients of a table's equal rows: `Unique` makes the distinct row numbers,
and sums, quotients and updates have a row for each. A plan needs whole shapes. So it gives these
tensors as many rows as numbers were fed, and the rows after the last distinct one mean nothing: no
operation mixes them with others, and updates leave them out. A function that does anything else
with such rows, as returning them, cannot be planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tf_fuse.layout.trace.bodies import BodyTracer
from tf_fuse.layout.trace.records import is_whole
from tf_fuse.layout.trace.tracer import Value
from tf_fuse.layout.types.control_flow import OUTSIDE
from tf_fuse.layout.types.operation import DISTINCT_ROWS

_SIZES: Final = ("Shape", "ShapeN", "Size")
_PASSED_ON: Final = ("Identity", "PreventGradient", "Reshape", "Snapshot", "StopGradient")
_GATHERS: Final = ("Gather", "GatherV2", "ResourceGather")
_UPDATES: Final = ("ResourceScatter", "ResourceSparseApply")
# Row by row, and without an error for any number.
_ELEMENTWISE: Final = (
    "Abs", "Add", "AddN", "AddV2", "Cast", "Conj", "Div", "DivNoNan", "Elu", "Equal", "Exp",
    "Expm1", "Greater", "GreaterEqual", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "Less",
    "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum",
    "Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike", "Pow", "RealDiv", "Reciprocal", "Relu",
    "Rsqrt", "SelectV2", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Square",
    "SquaredDifference", "Sub", "Tanh", "Xdivy", "Xlogy", "ZerosLike",
)  # fmt: skip


class MixedRowsError(Exception):
    """Something uses rows that mean nothing."""


class DistinctRowsTracer(BodyTracer):
    """A tracer that gives distinct rows a whole shape."""

    def __init__(self, variables: Mapping[int, Any], bodies: bool = True):
        """Start without records, as `BodyTracer` does."""
        super().__init__(variables, bodies)
        # Tensors with a row for each distinct number, and the `Unique` that made these.
        self._rows: dict[str, str] = {}
        # Those that hold the numbers themselves.
        self._distinct: dict[str, str] = {}
        # Tensors that say for each number which of the rows is its own.
        self._places: dict[str, str] = {}
        # Constants that were computed of the count of rows, which is not the one that they hold.
        self._counts: dict[str, str] = {}

    def check_seen(self, names: Iterable[str]) -> None:
        """Check that what is seen outside of the function has no rows without a meaning.

        Raises:
          MixedRowsError: something has.
        """
        if any(one in self._rows or one in self._counts for one in names):
            raise MixedRowsError

    def operation(self, operation: Any, prefix: str, inputs: Sequence[Value]) -> list[Value]:
        """Record an operation.

        Raises:
          MixedRowsError: it would use rows that mean nothing.
        """
        names = [one if isinstance(one, str) else "" for one in inputs]
        if not any(one in self._rows or one in self._counts for one in names):
            made = super().operation(operation, prefix, inputs)
            if operation.type == "Unique" and self.block == OUTSIDE:
                self._begin(names[0], made)
            elif operation.type in _PASSED_ON and names[0] in self._places:
                self._places[str(made[0])] = self._places[names[0]]
            return made
        of = {self._rows.get(one) or self._counts.get(one) for one in names} - {None}
        if self.block != OUTSIDE or len(of) > 1:
            raise MixedRowsError
        made = super().operation(operation, prefix, inputs)
        self._follow(operation, names, [one for one in made if isinstance(one, str)], of.pop())
        return made

    def _begin(self, given: str, made: Sequence[Value]) -> None:
        """Give the outputs of `Unique` a whole shape."""
        distinct, places = map(str, made)
        shape, dtype = self.tensors[given].shape, self.tensors[distinct].dtype
        if is_whole(shape) and len(shape) == 1 and dtype in ("int32", "int64"):
            self._rows[distinct] = self._distinct[distinct] = self._places[places] = distinct
            self._set_rows(distinct, distinct, shape[0])
            self._mark()

    def _follow(self, operation: Any, names: Sequence[str], made: Sequence[str], of: Any) -> None:
        kind = operation.type
        if kind in _SIZES or (made and all(one in self.constants for one in made)):
            self._counts.update(dict.fromkeys(made, of))
        elif kind == "UnsortedSegmentSum":
            self._segments(names, made[0], of)
        elif kind == "IdentityN" or (kind in _PASSED_ON and self._has_shape_of(names[0], made[0])):
            self._pass_on(names, made)
        elif any(one in self._counts for one in names):
            raise MixedRowsError
        elif kind in _GATHERS:
            self._gather(operation, names, made[0], of)
        elif kind.startswith(_UPDATES):
            self._update(operation, names)
        elif kind in _ELEMENTWISE and self._is_row_by_row(names, made[0]):
            self._rows[made[0]] = of
        else:
            raise MixedRowsError

    def _segments(self, names: Sequence[str], made: str, of: str) -> None:
        data, places, count = names
        if count in self._counts and data not in self._rows and self._places.get(places) == of:
            self._rows[made] = of
        elif count not in self._counts and places in self._distinct:
            self._mark()
        else:
            raise MixedRowsError

    def _has_shape_of(self, first: str, second: str) -> bool:
        return self.shape_of(first) == self.shape_of(second)

    def _pass_on(self, names: Sequence[str], made: Sequence[str]) -> None:
        for name, one in zip(names, made, strict=False):
            for known in (self._rows, self._distinct, self._places, self._counts):
                if name in known:
                    known[one] = known[name]

    def _gather(self, operation: Any, names: Sequence[str], made: str, of: str) -> None:
        table, ids = names[:2]
        of_rows = operation.type != "GatherV2" or (
            self.constants.get(names[2]) == 0 and not operation.get_attr("batch_dims")
        )
        if of_rows and table in self._rows and self._places.get(ids) == of:
            return
        if not of_rows or table in self._rows or ids not in self._distinct:
            raise MixedRowsError
        (count,) = self.tensors[ids].shape or ()
        self._rows[made] = of
        self._set_rows(made, of, count)
        self._mark()

    def _update(self, operation: Any, names: Sequence[str]) -> None:
        """Check an update of some rows of a table, and let it leave out those without meaning."""
        arguments = [one.name for one in operation.op_def.input_arg]
        given = dict(zip(arguments, names, strict=True))
        new = given.get("updates", given.get("grad", ""))
        others = [one for one in names if one in self._rows and one not in (given["indices"], new)]
        fits = new in self._rows or self.shape_of(new) == []
        if given["indices"] not in self._distinct or not fits or others:
            raise MixedRowsError
        self._mark()

    def _is_row_by_row(self, names: Sequence[str], made: str) -> bool:
        """Return whether rows of the output are of the same rows, of numbers without errors."""
        shape = self.shape_of(made)
        if not shape:
            return False
        for name in names:
            mine = self.shape_of(name)
            if mine is None:
                return False
            kind = tf.as_dtype(self.tensors[name].dtype)
            if not (kind.is_floating or kind.is_complex or kind.is_bool):
                return False
            whole = len(mine) == len(shape)
            if name in self._rows and not (whole and mine[0] == shape[0]):
                return False
            if name not in self._rows and whole and mine[0] != 1:
                return False
        return True

    def _set_rows(self, name: str, of: str, count: int | None) -> None:
        """Set the number of rows of a tensor that TensorFlow does not know."""
        made = self.tensors[name]
        self.tensors[name] = made._replace(shape=[count, *(made.shape or ())[1:]])
        self._rows[name] = of

    def _mark(self) -> None:
        """Mark what was recorded as reading or making row numbers that may mean nothing."""
        last = self.records[-1]
        self.records[-1] = last._replace(attributes={**last.attributes, DISTINCT_ROWS: True})
