# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""No file outside of tf_fuse/_tensorflow replaces a member of TensorFlow or Keras, or reads one."""

import ast
import os
import re
from pathlib import Path

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from tf_fuse._tensorflow import catalogue, members

_PACKAGE = Path(__file__).resolve().parents[3] / "tf_fuse"
_PACKAGES = ("tensorflow", "keras", "tf_keras")
_CHANGES = frozenset(
    {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
)


def _is_private(name):
    return re.fullmatch("_[^_].*|__(?!.*__$).*", name) is not None


# Names that are set on objects, and that no class of this package has.
_SET = {one.name for one in catalogue.MEMBERS if one.when != members.READ} - {"build", "update"}
# Names that TensorFlow and Keras keep to themselves, as far as they are known.
_PRIVATE = {one.name for one in catalogue.MEMBERS if _is_private(one.name)}
# Names with an underscore that are read of objects that are neither ours nor theirs.
_OF_OTHERS = {
    "_asdict": "of every NamedTuple",
    "_fields": "of every NamedTuple",
    "_replace": "of every NamedTuple",
    "_SubParsersAction": "of argparse, which has no other name for it",
    "_exit": "of os: a process ends at once",
    "_getframe": "of sys: to look at the callers",
    "_importing": "a folder of this package",
    "_start": "a module of this package",
}
# How names begin that this package gives to objects of TensorFlow's.
_OURS = "_tf_fuse"


def _root(node):
    """The name that a chain of attributes and items begins with; None for others."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_theirs(node, theirs):
    """Whether an expression is a module of theirs, or what such a module or class has."""
    if isinstance(node, ast.Call):
        names_module = any(
            isinstance(one, ast.Constant) and str(one.value).partition(".")[0] in _PACKAGES
            for one in node.args
        )
        is_getattr = isinstance(node.func, ast.Name) and node.func.id == "getattr"
        return names_module or (is_getattr and _is_theirs(node.args[0], theirs))
    return _root(node) in theirs


def _theirs(tree):
    """Names that stand for modules and classes of TensorFlow and Keras, anywhere in a file."""
    theirs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            theirs |= {
                (one.asname or one.name).partition(".")[0]
                for one in node.names
                if one.name.partition(".")[0] in _PACKAGES
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _PACKAGES:
            # (Messages of a graph are made to be filled in.)
            theirs |= {
                one.asname or one.name for one in node.names if not one.name.endswith("_pb2")
            }
    before = None
    while before != len(theirs):
        before = len(theirs)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _is_theirs(node.value, theirs):
                theirs |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return theirs


def _targets(node):
    if isinstance(node, (ast.Assign, ast.Delete)):
        return [one for target in node.targets for one in ast.walk(target)]
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []


def _own_names(tree):
    """Names that a file defines: functions, classes, variables, imports and attributes of self."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.alias):
            own.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own |= {node.attr} if _root(node) in ("self", "cls") else set()
    return own


def _is_own_object(node, of_this_package):
    """Whether an attribute is one of self, cls or super() in a class."""
    is_self = isinstance(node.value, ast.Name) and node in of_this_package
    return is_self or _called_name(node.value) == "super"


def _reads(tree):
    """Lines that read a private member of an object that this file does not define.

    A name that the file defines is its own, but one that is known to be theirs is own only where it
    is read of `self` or `super()` in a class: that extends a class of theirs, or has it by chance.
    """
    own = _own_names(tree) | _OF_OTHERS.keys()
    of_this_package = _objects_of_classes(tree)
    pieces = {
        piece for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            is_own = node.attr in own and (
                node.attr not in _PRIVATE or _is_own_object(node, of_this_package)
            )
            if not is_own and not node.attr.startswith(_OURS):
                yield node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_module = re.fullmatch(r"(keras|tf_keras)\.src\b[\w.]*", node.value)
            if node not in pieces and (node.value in _PRIVATE or is_module):
                yield node.lineno
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *(one.name for one in node.names)]
            parts = ".".join(names).split(".")
            if set(_PACKAGES) & set(parts[:2]) and any(map(_is_private, parts)):
                yield node.lineno
        elif _called_name(node) in ("getattr", "hasattr") and _names_private(node.args[1], own):
            yield node.lineno


def _called_name(node):
    """The name of the function that is called; "" for other expressions."""
    is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if is_named else ""


def _names_private(node, own):
    """Whether the name that `getattr` gets is, or begins as, a private one of others."""
    if isinstance(node, ast.JoinedStr):
        node, own = node.values[0], set()
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    name = node.value
    return name.startswith("_") and not (
        name.startswith(("__", _OURS)) or (name in own and name not in _PRIVATE)
    )


def _objects_of_classes(tree):
    """Attributes of `self` and `cls` in classes: of objects of this package."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    inside = {one for node in classes for one in ast.walk(node)}
    return {one for one in inside if _root(one) in ("self", "cls")}


def found_in(text):
    """Lines of a file that change what is TensorFlow's or Keras's, or read what is private."""
    tree = ast.parse(text)
    theirs = _theirs(tree)
    of_this_package = _objects_of_classes(tree)
    found = list(_reads(tree))
    for node in ast.walk(tree):
        for one in _targets(node):
            if isinstance(one, (ast.Attribute, ast.Subscript)) and not isinstance(
                one.ctx, ast.Load
            ):
                is_set = isinstance(one, ast.Attribute) and one.attr in _SET
                if _root(one) in theirs or (is_set and one not in of_this_package):
                    found.append(node.lineno)
        if isinstance(node, ast.Call):
            if _called_name(node) in ("setattr", "delattr"):
                is_set = isinstance(node.args[1], ast.Constant) and node.args[1].value in _SET
                if _is_theirs(node.args[0], theirs) or is_set:
                    found.append(node.lineno)
            if isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
                owner = node.func.value
                if isinstance(owner, ast.Attribute) and _is_theirs(owner, theirs):
                    found.append(node.lineno)
                if isinstance(owner, ast.Call) and _vars_of(owner, theirs):
                    found.append(node.lineno)
    return sorted(set(found))


def _vars_of(node, theirs):
    is_vars = isinstance(node.func, ast.Name) and node.func.id == "vars"
    return is_vars and _is_theirs(node.args[0], theirs)


@pytest.mark.parametrize(
    "text",
    [
        "from tensorflow.python.eager import context\ncontext.Context.config = 1",
        "import keras\ncls = keras.Model\nbase = cls\nbase.build, x = 1, 2",
        "import sys\nm = sys.modules.get('keras.src')\nc = getattr(m, 'Model')\nsetattr(c, 'a', 1)",
        "from tensorflow.python.eager import transform\ntransform.CALLBACKS.append(1)",
        "def f(error):\n    error._message = ''",
        "def f(self):\n    self._message = ''",
        "def f(stock, self):\n    return self._distribute_strategy",
        "class C: ...\ndef f(self, data):\n    self._distributed_dataset = data",
        "def f(cls):\n    setattr(cls, 'call_function', None)",
        "import tensorflow as tf\ndel tf.function",
        "import tensorflow as tf\ntf.__dict__['function'] = 1",
        "import tensorflow as tf\nvars(tf).update(function=1)",
    ],
)
def test_a_replacement_is_found(text):
    assert found_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "x._some_member",
        "def f(variable):\n    return variable._v",
        "handle = variable.__dict__.get('_handle')",
        "while '_v' in variable.__dict__: pass",
        "class C:\n    def f(self, worker):\n        self._worker = worker\n"
        "        self._worker._maybe_delay()",
        "class C:\n    def _serialize_to_tensors(self):\n"
        "        return [one._serialize_to_tensors() for one in self.parts]",
        "class C(Graph):\n    def f(self):\n        return self._name_stack",
        "methods = {'_clip_gradients': None}",
        "import sys\nsys.modules['keras.src.backend'].name_scope",
        "from tensorflow.python.util import _pywrap_util_port",
        "for _ in steps: getattr(model, f'_{step}_counter', None)",
        "counter = getattr(model, '_some_member', None)",
    ],
)
def test_a_read_is_found(text):
    assert found_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "class C:\n    def __init__(self):\n        self._v = 1\n        print(self._v)",
        "class C(Base):\n    def _handle(self):\n        return super()._handle",
        "def f(context):\n    return getattr(context, '_tf_fuse_updates', context._tf_fuse_fuser)",
        "def _f(): ...\nclass C:\n    def other(self, other):\n        self._x = other._x",
        "name = f'{scope}_handle'",
        "from tf_fuse import _start\nimport os\nos._exit(1)",
    ],
)
def test_what_is_ours_may_be_read(text):
    assert not found_in(text)


def test_no_other_file_replaces_a_member():
    files = [
        path
        for path in _PACKAGE.rglob("*.py")
        if _PACKAGE / "_tensorflow" not in path.parents and not path.name.endswith("_pb2.py")
    ]
    assert len(files) > 100
    found = {str(path.relative_to(_PACKAGE)): found_in(path.read_text()) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
