# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read the order of virtual functions in the C++ classes of TensorFlow that tf_fuse subclasses.

The build records them in build_info.json, and `tf-fuse doctor` compares. setup.py runs this file by
itself, so it imports nothing of tf_fuse. Sizes of objects cannot be compared: TensorFlow's
libraries do not hold them.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

# Those whose virtual function tables TensorFlow's libraries export.
CLASSES = (
    "AsyncOpKernel",
    "BaseCollectiveExecutor",
    "BaseRemoteRendezvous",
    "BaseRendezvousMgr",
    "CollectiveParamResolverDistributed",
    "CollectiveRemoteAccessDistributed",
    "Device",
    "DeviceBase",
    "EnvWrapper",
    "GraphOptimizationPass",
    "GrpcServer",
    "GrpcWorker",
    "OpKernel",
    "RpcCollectiveExecutorMgr",
    "TensorBuffer",
    "WorkerCacheWrapper",
)
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_RTLD_DL_SYMENT = 1


class _DlInfo(ctypes.Structure):
    """Dl_info of <dlfcn.h>."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _ElfSymbol(ctypes.Structure):
    """Elf64_Sym of <elf.h>."""

    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_ubyte),
        ("other", ctypes.c_ubyte),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


def digests(include_folder: str) -> dict[str, str]:
    """Return a digest of the virtual functions' names, in order, by class.

    Args:
        include_folder: what `tf.sysconfig.get_include()` returns; TensorFlow is loaded.
    """
    library = ctypes.CDLL(str(Path(include_folder).parent / "libtensorflow_cc.so.2"))
    found = {name: _virtual_functions(library, name) for name in CLASSES}
    return {
        name: hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        for name, names in found.items()
    }


def differing(built: dict[str, str], include_folder: str) -> list[str]:
    """Return the names of the classes whose virtual functions are not those of the build."""
    here = digests(include_folder)
    return [name for name, digest in built.items() if here.get(name) != digest]


def _virtual_functions(library: ctypes.CDLL, name: str) -> list[str]:
    """Return the symbol in each place of a class's table, "?" for what is not exported."""
    mangled = f"_ZTVN10tensorflow{len(name)}{name}E"
    try:
        table = ctypes.addressof(ctypes.c_char.in_dll(library, mangled))
    except ValueError:
        return []
    process = ctypes.CDLL(None)
    info, symbol = _DlInfo(), ctypes.POINTER(_ElfSymbol)()
    process.dladdr1(
        ctypes.c_void_p(table), ctypes.byref(info), ctypes.byref(symbol), _RTLD_DL_SYMENT
    )
    names = []
    # The first two places are the offset to the top and the type information.
    for place in range(2, symbol.contents.size // _POINTER):
        function = ctypes.c_void_p.from_address(table + place * _POINTER).value
        found = process.dladdr(ctypes.c_void_p(function), ctypes.byref(info))
        exact = found and info.address == function and info.symbol
        names.append(info.symbol.decode() if exact else "?")
    return names
