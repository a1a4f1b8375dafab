# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""No file outside of tf_fuse/_tensorflow replaces a member of TensorFlow or Keras, or reads one."""

import ast
import os
from pathlib import Path

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from tf_fuse._tensorflow import catalogue, members

_PACKAGE = Path(__file__).resolve().parents[3] / "tf_fuse"
_PACKAGES = ("tensorflow", "keras", "tf_keras")
_CHANGES = frozenset(
    {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
)
# Names that are set on objects, and that no class of this package has.
_SET = {one.name for one in catalogue.MEMBERS if one.when != members.READ} - {"build", "update"}
# Names that TensorFlow and Keras keep to themselves.
_PRIVATE = {one.name for one in catalogue.MEMBERS if one.name.startswith("_")}


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


def _objects_of_classes(tree):
    """Attributes of `self` and `cls` in classes: of objects of this package."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    inside = {one for node in classes for one in ast.walk(node)}
    return {one for one in inside if _root(one) in ("self", "cls")}


def found_in(text):
    """Lines of a file that change what is TensorFlow's or Keras's.

    In functions that extend methods of theirs, `self` is an object of theirs: there, lines that
    read a private member count, too.
    """
    tree = ast.parse(text)
    theirs = _theirs(tree)
    of_this_package = _objects_of_classes(tree)
    found = []
    for node in ast.walk(tree):
        is_read = isinstance(node, ast.Attribute) and node.attr in _PRIVATE
        if is_read and _root(node) == "self" and node not in of_this_package:
            found.append(node.lineno)
        for one in _targets(node):
            if isinstance(one, (ast.Attribute, ast.Subscript)) and not isinstance(
                one.ctx, ast.Load
            ):
                is_set = isinstance(one, ast.Attribute) and one.attr in _SET
                if _root(one) in theirs or (is_set and one not in of_this_package):
                    found.append(node.lineno)
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in ("setattr", "delattr"):
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


def test_no_other_file_replaces_a_member():
    files = [
        path
        for path in _PACKAGE.rglob("*.py")
        if _PACKAGE / "_tensorflow" not in path.parents and not path.name.endswith("_pb2.py")
    ]
    assert len(files) > 100
    found = {str(path.relative_to(_PACKAGE)): found_in(path.read_text()) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
