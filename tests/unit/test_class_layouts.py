# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The virtual functions of TensorFlow's classes are compared with those that the build saw."""

import ctypes
import os

import tensorflow as tf

from tf_fuse import _class_layouts, _native

_INCLUDE = tf.sysconfig.get_include()


def test_classes_are_those_of_the_build():
    built = _native.build_info()["classes"]
    assert sorted(built) == sorted(_class_layouts.CLASSES)
    assert _class_layouts.differing(built, _INCLUDE) == []


def test_another_class_is_named():
    built = {**_class_layouts.digests(_INCLUDE), "Device": "0", "Unknown": "1"}
    assert _class_layouts.differing(built, _INCLUDE) == ["Device", "Unknown"]


def test_functions_stand_in_the_order_of_the_header():
    library = ctypes.CDLL(os.path.join(os.path.dirname(_INCLUDE), "libtensorflow_cc.so.2"))
    names = _class_layouts._virtual_functions(library, "AsyncOpKernel")
    short = ("Compute", "AsAsync", "IsExpensive", "const_tensor", "TraceString")
    for name, mangled in zip(short, names[2:7], strict=True):
        assert f"{len(name)}{name}" in mangled
    assert names[7:] == ["__cxa_pure_virtual"]


def test_class_that_is_not_there_has_no_functions():
    library = ctypes.CDLL(os.path.join(os.path.dirname(_INCLUDE), "libtensorflow_cc.so.2"))
    assert _class_layouts._virtual_functions(library, "NoSuchClass") == []
