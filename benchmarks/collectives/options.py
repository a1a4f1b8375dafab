# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of benchmarks/collectives."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.collectives import results
from benchmarks.collectives.rank import OPS
from benchmarks.common import link

VARIANTS = ("stock", "tf_fuse", "gloo")
# The first is what the library prefers: the variant `tf_fuse` leaves the choice to it.
PATHS = ("shm", "tcp", "grpc")
_DEFAULT_SIZES = "4KB,64KB,1MB,16MB,64MB"

_T = TypeVar("_T")


def listed(texts: Sequence[str], convert: Callable[[str], _T]) -> list[_T]:
    """Return the values of an option that takes several, by spaces or commas; each once."""
    words = [word for text in texts for word in text.split(",") if word]
    return list(dict.fromkeys(convert(word) for word in words))


def _choice(option: str, known: Sequence[str]) -> Callable[[str], str]:
    def convert(word: str) -> str:
        if word not in known:
            raise ValueError(f"{option} takes {', '.join(known)}; got {word!r}")
        return word

    return convert


def _rank_count(word: str) -> int:
    if not word.isdecimal() or int(word) < 2:
        raise ValueError(f"--ranks takes whole numbers of at least 2, got {word!r}")
    return int(word)


def _size(word: str) -> int:
    try:
        return results.parse_size(word)
    except ValueError as e:
        raise ValueError(f"--sizes: {e}") from e


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare collectives of several processes.")
    several: dict[str, Any] = {"nargs": "+", "metavar": "X"}
    parser.add_argument("--op", **several, default=["all_reduce"], help=f"of {', '.join(OPS)}")
    parser.add_argument("--ranks", **several, default=["2,4"], help="processes, at least 2")
    parser.add_argument("--sizes", **several, default=[_DEFAULT_SIZES],
                        help="of the whole tensor; a KB has 1024 bytes")  # fmt: skip
    parser.add_argument("--variants", **several, default=[",".join(VARIANTS)],
                        help=f"of {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--paths", **several,
                        help="a variant of ours for each: shm is what the library does by default, "
                        "grpc and tcp force that path; shm by default, and grpc,tcp with "
                        "--hosts 2")  # fmt: skip
    link.add_options(parser, "the second half of the ranks")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large-rounds", type=int,
                        help="of sizes from 256MB on; as --rounds by default")  # fmt: skip
    parser.add_argument("--calls", type=int, help="per round; chosen by size when not given")
    parser.add_argument("--timeout", type=float, default=300.0,
                        help="seconds that a start, a check or a round may take")  # fmt: skip
    parser.add_argument("--gloo-python", metavar="PATH",
                        help="an interpreter that has PyTorch; this one by default")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    if args.paths is None:
        args.paths = [PATHS[0]] if args.hosts == 1 else ["grpc", "tcp"]
    try:
        args.op = listed(args.op, _choice("--op", OPS))
        args.ranks = listed(args.ranks, _rank_count)
        args.sizes = listed(args.sizes, _size)
        args.variants = listed(args.variants, _choice("--variants", VARIANTS))
        args.paths = listed(args.paths, _choice("--paths", PATHS))
    except ValueError as e:
        parser.error(str(e))
    for name in ("op", "ranks", "sizes", "variants", "paths"):
        if not getattr(args, name):
            parser.error(f"--{name} names nothing")
    for name in ("rounds", "large_rounds", "calls", "timeout"):
        value = getattr(args, name)
        if value is not None and not value >= 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value:g}")
    if reason := link.settle(args):
        parser.error(reason)
    if args.gloo_python and "gloo" not in args.variants:
        parser.error(f"--gloo-python {args.gloo_python} is of no use: --variants lacks gloo")
    return args
