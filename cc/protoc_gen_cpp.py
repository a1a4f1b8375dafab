# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The C++ generator of the protoc in grpcio-tools, as a protoc plugin.

``python -m grpc_tools.protoc`` offers Python output only, but the library behind it also holds
protoc's own C++ generator, of just the version that TensorFlow's headers demand. This program
hands a CodeGeneratorRequest on standard input to it and writes the CodeGeneratorResponse to
standard output, which is what ``protoc --plugin=protoc-gen-cpp=... --cpp_out=...`` expects.

The generator's class has an inline constructor, so the object is laid out here by hand. Should a
later grpcio-tools lay it out differently, the build fails: here on a missing symbol, or in the
C++ compiler, which compares the version in the generated code with TensorFlow's.
"""

import ctypes
import os
import sys

from grpc_tools import _protoc_compiler

_PLUGIN_MAIN = "_ZN6google8protobuf8compiler10PluginMainEiPPcPKNS1_13CodeGeneratorE"
_GENERATOR_VTABLE = "_ZTVN6google8protobuf8compiler3cpp12CppGeneratorE"
_POINTER = ctypes.sizeof(ctypes.c_void_p)


class _CppGenerator(ctypes.Structure):
    """google::protobuf::compiler::cpp::CppGenerator.

    Its one string, ``runtime_include_base``, is to be empty. Both layouts of libstdc++ (the wheel
    uses the old one) begin with a pointer to the characters. The new one keeps the length behind
    that pointer, the old one keeps length, capacity and reference count in front of the
    characters: zeros in both places are an empty string in either.
    """

    _fields_ = (
        ("vtable", ctypes.c_void_p),
        ("opensource_runtime", ctypes.c_bool),
        ("include_base", ctypes.c_void_p),
        ("include_base_length", ctypes.c_size_t * 3),
        ("empty_header", ctypes.c_size_t * 3),
        ("empty", ctypes.c_char * 8),
    )


def main() -> int:
    """Run the generator once, from standard input to standard output.

    Returns:
        0, or a positive number after an error was printed to standard error.
    """
    library = ctypes.CDLL(_protoc_compiler.__file__)
    try:
        plugin_main = library[_PLUGIN_MAIN]
        vtable = ctypes.c_char.in_dll(library, _GENERATOR_VTABLE)
    except (AttributeError, ValueError) as error:
        print(
            f"{_protoc_compiler.__file__} holds no C++ generator ({error}). Install a grpcio-tools "
            'that does: python -m pip install "grpcio-tools>=1.74,<1.79"',
            file=sys.stderr,
        )
        return 1
    generator = _CppGenerator(opensource_runtime=True)
    # Objects point behind the vtable's offset-to-top and typeinfo.
    generator.vtable = ctypes.addressof(vtable) + 2 * _POINTER
    generator.include_base = ctypes.addressof(generator) + _CppGenerator.empty.offset
    arguments = (ctypes.c_char_p * 2)(os.fsencode(sys.argv[0]), None)
    plugin_main.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    plugin_main.restype = ctypes.c_int
    return plugin_main(1, ctypes.byref(arguments), ctypes.byref(generator))


if __name__ == "__main__":
    sys.exit(main())
