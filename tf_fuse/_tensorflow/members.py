# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Describe members of TensorFlow or Keras, and check that they look as this package expects."""

from __future__ import annotations

import dis
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final, Protocol

AT_IMPORT: Final = "replaced at import"
AT_FIRST_USE: Final = "replaced at first use"
ON_OBJECTS: Final = "set on single objects"
READ: Final = "read"

#: A parameter of any name.
ANY: Final = "*"

#: A name that the owner does not have.
ABSENT: Final = object()
# As it is now.
_PRESENT: Final = object()


class Shape(Protocol):
    """What is relied on."""

    def problem(self, owner: Any, name: str, value: Any) -> str | None:
        """Return what differs, as the end of a sentence about the member; None if nothing does."""


@dataclass(frozen=True, init=False)
class Takes:
    """A function or method with exactly these parameters, `self` included."""

    parameters: tuple[str, ...]

    def __init__(self, *parameters: str):
        object.__setattr__(self, "parameters", parameters)

    def problem(self, owner: Any, name: str, value: Any) -> str | None:
        """Compare the names of the parameters."""
        del owner, name
        if not callable(value):
            return f"is {value!r}, not a function"
        try:
            found = tuple(inspect.signature(value).parameters)
        except (TypeError, ValueError) as error:
            return f"has no signature ({error})"
        pairs = zip(found, self.parameters, strict=False)
        if len(found) == len(self.parameters) and all(b in (a, ANY) for a, b in pairs):
            return None
        return f"takes ({', '.join(found)}), not ({', '.join(self.parameters)})"


@dataclass(frozen=True, init=False)
class Is:
    """A value of one of these types, by the types' names."""

    types: tuple[str, ...]

    def __init__(self, *types: str):
        object.__setattr__(self, "types", types)

    def problem(self, owner: Any, name: str, value: Any) -> str | None:
        """Compare the names of the value's classes."""
        del owner, name
        if {one.__name__ for one in type(value).__mro__} & set(self.types):
            return None
        return f"is a {type(value).__name__}, not a {' or '.join(self.types)}"


@dataclass(frozen=True)
class Exists:
    """A member of compiled code: only its name can be checked."""

    def problem(self, owner: Any, name: str, value: Any) -> str | None:
        """Nothing else can be compared."""
        del owner, name, value
        return None


@dataclass(frozen=True)
class Stored:
    """An attribute of each object: some method of the class, or of its bases, assigns to it."""

    def problem(self, owner: Any, name: str, value: Any) -> str | None:
        """Look for the assignment in the code of the methods."""
        del value
        if any(name in _stored_names(function) for function in _functions(owner)):
            return None
        return "is not assigned to by any method of the class"


@dataclass(frozen=True)
class Absent:
    """A name that only the objects have: the class itself has nothing of that name."""

    def problem(self, owner: Any, name: str, value: Any) -> str | None:
        """Look for a member of the class, and for the assignment to the objects' attribute."""
        if value is not ABSENT:
            return f"is a member of the class ({value!r})"
        return Stored().problem(owner, name, value)


@dataclass(frozen=True)
class Versions:
    """Versions of a package, each by its first two numbers.

    Attributes:
      package: its name, for messages.
      first, last: included.
    """

    package: str
    first: tuple[int, int]
    last: tuple[int, int]

    def include(self, version: str) -> bool:
        """Return whether a version is one of these."""
        found = re.match(r"(\d+)\.(\d+)", version)
        return found is not None and self.first <= (int(found[1]), int(found[2])) <= self.last

    def __str__(self) -> str:
        first, last = (".".join(map(str, one)) for one in (self.first, self.last))
        return f"{self.package} {first} to {last}"


@dataclass(frozen=True)
class Member:
    """One member that is replaced or read.

    Attributes:
      owner: a module, "package.module", or a class of it, "package.module:Class".
      name: of the attribute.
      shape: that is relied on.
      why: it is replaced or read.
      features: that need it; see `features.py`.
      when: `AT_IMPORT`, `AT_FIRST_USE`, `ON_OBJECTS` or `READ`.
      versions: whose shape was looked at.
      mended: versions whose member does something wrong, and whose mend was tried; None if the
        replacement mends nothing.
    """

    owner: str
    name: str
    shape: Shape
    why: str
    features: tuple[str, ...]
    when: str = READ
    versions: str = "TensorFlow 2.20, 2.21"
    mended: Versions | None = None

    @property
    def package(self) -> str:
        """Name of the package that has the member."""
        return self.owner.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.owner.replace(':', '.')}.{self.name}"

    def is_present(self) -> bool:
        """Return whether the member can be looked at without importing another package."""
        return self.package == "tensorflow" or self.owner.partition(":")[0] in sys.modules

    def is_installed(self) -> bool:
        """Return whether the package of the owner is in this environment."""
        return self.package in sys.modules or importlib.util.find_spec(self.package) is not None

    def resolve(self) -> Any:
        """Return the owner; import its module if need be.

        Raises:
          ImportError: there is no such module.
          AttributeError: the module has no such class.
        """
        module, _, path = self.owner.partition(":")
        found = importlib.import_module(module)
        for name in filter(None, path.split(".")):
            found = getattr(found, name)
        return found

    def problem(self, original: Any = _PRESENT) -> str | None:
        """Return what differs from the shape that is relied on; None if nothing does.

        Args:
          original: the member, where it is replaced already; `ABSENT` if the owner inherits it or
            has none.
        """
        try:
            owner = self.resolve()
        except (ImportError, AttributeError) as error:
            return f"is missing ({error})"
        value = original
        if original is _PRESENT:
            value = inspect.getattr_static(owner, self.name, ABSENT)
        elif original is ABSENT:
            value = _inherited(owner, self.name)
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if value is ABSENT and not isinstance(self.shape, (Stored, Absent)):
            return "is missing"
        return self.shape.problem(owner, self.name, value)


def _inherited(owner: Any, name: str) -> Any:
    bases = getattr(owner, "__mro__", ())[1:]
    return next((vars(base)[name] for base in bases if name in vars(base)), ABSENT)


def _functions(cls: Any) -> Iterator[CodeType]:
    for base in getattr(cls, "__mro__", ()):
        for value in vars(base).values():
            code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
            if isinstance(value, property) and value.fset is not None:
                code = getattr(value.fset, "__code__", None)
            if isinstance(code, CodeType):
                yield code


def _stored_names(code: CodeType) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}
