# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of benchmarks/fuse_recv."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.compare import WARM_UP_STEPS

RECEIVES = "receives"  # fused receives, and no operations that run as one
COMPRESSED = "compressed"  # fused, with rows and gradients of bfloat16
COMPRESSED_IN_FLIGHT = "compressed_in_flight"  # and four steps under way
UNIQUE = "unique"  # all, and each id of a lookup once
COMBINE = "combine"  # fused, with sums of rows
MODES = (
    "stock", RECEIVES, "fused", COMBINE, COMPRESSED, COMPRESSED_IN_FLIGHT, "all", UNIQUE, "local",
)  # fmt: skip
_DEFAULT_MODES = ("stock", "fused", "local")
IN_FLIGHT = "in_flight_"  # followed by the number
PER_CALL = "per_call_"  # the same
GROUPINGS = ("level", "consumer", "cost", "dynamic")
# What the flags are when they are not given. `rfc` is the setting of the FuseRecv RFC.
_DEFAULTS: dict[str, dict[str, int]] = {
    "features": {"features": 300, "batch": 64, "workers": 1, "ps": 2, "steps": 60},
    "bags": {"features": 60, "batch": 64, "workers": 1, "ps": 2, "steps": 40},
    "dense": {"batch": 64, "workers": 1, "ps": 2, "steps": 40},
    "mixed": {"features": 60, "batch": 64, "workers": 1, "ps": 2, "steps": 40},
    "rfc": {"features": 40, "batch": 128, "workers": 5, "ps": 1, "steps": 60},
    "adult": {"batch": 64, "workers": 1, "ps": 2, "steps": 60},
    "criteo": {"batch": 64, "workers": 1, "ps": 2, "steps": 60},
    "nothing": {"batch": 64, "workers": 1, "ps": 1, "steps": 400},
}
# Wide & deep on rows of a file.
DATASETS = ("adult", "criteo")
# Which field of the workload --features is.
FEATURES_FIELD = {
    "features": "features", "bags": "features", "mixed": "features", "rfc": "embeddings",
}  # fmt: skip


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, and fill in what the workload decides."""
    parser = argparse.ArgumentParser(description="Compare stock, fused and local training steps.")
    parser.add_argument("--workload", choices=sorted(_DEFAULTS), default="features")
    parser.add_argument(
        "--features",
        type=int,
        help="tables (features, bags, mixed) or embeddings (rfc); others have none",
    )
    parser.add_argument(
        "--synchronous",
        action="store_true",
        help="start a step when the one before has ended, so that the losses of several workers "
        "can be compared",
    )
    parser.add_argument("--workers", type=int)
    parser.add_argument("--ps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="per round, all workers together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--data",
        type=Path,
        help="a file of adult or criteo; else TF_FUSE_DATA (adult), else synthetic",
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(_DEFAULT_MODES))
    parser.add_argument(
        "--grouping",
        type=lambda text: text.split(","),
        default=[],
        help=f"the option fuse_grouping of the mode fused: {', '.join(GROUPINGS)}; or several, "
        "separated by commas, to have a mode for each in place of fused",
    )
    parser.add_argument(
        "--in-flight",
        type=lambda text: [int(one) for one in text.split(",")],
        default=[],
        help="values of the option steps_in_flight, separated by commas; each is a mode",
    )
    parser.add_argument(
        "--steps-per-call",
        type=lambda text: [int(one) for one in text.split(",")],
        default=[],
        help="how many steps a worker runs in one call, separated by commas; each is a mode",
    )
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture of the steps per second here")
    args = parser.parse_args(argv)
    for key in ("features", "batch", "workers", "ps", "steps"):
        if getattr(args, key) is None:
            setattr(args, key, _DEFAULTS[args.workload].get(key))
    for key in ("features", "batch", "workers", "ps", "steps", "rounds"):
        value = getattr(args, key)
        if value is not None and value < 1:
            parser.error(f"--{key} must be at least 1, got {value}")
    if args.features is not None and args.workload not in FEATURES_FIELD:
        print(
            f"note: the workload {args.workload} has no --features; {args.features} is not used",
            file=sys.stderr,
        )
        args.features = None
    if args.data is not None and args.workload not in DATASETS:
        parser.error(f"--data is for the workloads adult and criteo, not for {args.workload}")
    if args.workload == "adult" and args.data is None and "TF_FUSE_DATA" in os.environ:
        args.data = Path(os.environ["TF_FUSE_DATA"]) / "adult" / "adult.data"
    for grouping in args.grouping:
        if grouping not in GROUPINGS:
            parser.error(f"--grouping takes {', '.join(GROUPINGS)}; got {grouping!r}")
    if len(args.grouping) > 1:
        others = [mode for mode in args.modes if mode != "fused"]
        args.modes = [*others[:1], *args.grouping, *others[1:]]
    for n in args.steps_per_call:
        if n < 1 or args.steps % n or WARM_UP_STEPS % n:
            parser.error(f"--steps-per-call must divide --steps and {WARM_UP_STEPS}, got {n}")
    in_flight = (f"{IN_FLIGHT}{n}" for n in args.in_flight)
    per_call = (f"{PER_CALL}{n}" for n in args.steps_per_call)
    args.modes = list(dict.fromkeys([*args.modes, *in_flight, *per_call]))
    return args
