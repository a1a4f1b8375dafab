# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reports that no job made: one with every field, and one with very many tensors."""

from tf_fuse.report.records.model import (
    Function,
    Gain,
    Group,
    LaidOut,
    Lane,
    LayoutPlan,
    Left,
    Measured,
    Note,
    PlanSums,
    Receive,
    Relayout,
    Report,
    Segment,
    Step,
    Task,
    Tensor,
    Timeline,
    Transfer,
)

WORKER, PS = "/job:worker/replica:0/task:0", "/job:ps/replica:0/task:0"
_CPU = "/device:CPU:0"


def whole_report():
    """Return a report with something in each part."""
    tensors = tuple(
        Tensor(f"edge_{i}_Gather", f"Gather_{i}", "concat", f"table_{i}", "float", 64 * i, i == 2)
        for i in range(1, 4)
    )
    function = Function(
        task=WORKER,
        name="train",
        local_receives=2,
        groups=(Group(PS + _CPU, WORKER + _CPU, 1, True, "while", tensors),),
        left=(Left(WORKER + _CPU, PS + _CPU, "alone", "No other.", tensors[0]),),
    )
    timeline = Timeline(
        duration_us=900.0,
        lanes=(Lane(WORKER, ((0.0, 40.0), (600.0, 900.0))), Lane(PS, ((60.0, 300.0),))),
        transfers=(Transfer(PS, WORKER, tuple(one.name for one in tensors)),),
        receives=(Receive(0, 0, 20.0, 350.0, 600.0, 4096, tensors[2].name, "Aborted"),),
        steps=(
            Step(
                WORKER,
                0.0,
                900.0,
                (
                    Segment("compute", PS, "", "", 0.0, 350.0),
                    Segment("transfer", PS, WORKER, tensors[2].name, 350.0, 600.0),
                    Segment("compute", WORKER, "", "", 600.0, 900.0),
                ),
            ),
        ),
        dropped=3,
    )
    return Report(
        tf_fuse="0.2.0",
        tensorflow="2.21.0",
        made="2026-01-31T12:00:00Z",
        notes=(Note("ps:1", "did not answer: <b>gone</b>"),),
        tasks=(
            Task(WORKER, "", {"fused_rpcs": 1234.0, "bytes": 5e6}, {"alone": 1.0}),
            Task(PS, "no answer", {}, {}),
        ),
        functions=(function,),
        timeline=timeline,
        weight_updates={WORKER: {"functions": [], "operations": []}},
        server_updates={
            "servers": {
                PS: {
                    "updates": 7,
                    "update_us": 900,
                    "waits": 1,
                    "wait_us": 3,
                    "max_wait_us": 3,
                    "variables": {},
                }
            },
            "workers": {
                WORKER: {
                    "updates": 7,
                    "mean_staleness": 0.5,
                    "max_staleness": 2,
                    "staleness": [[0, 0, 6], [1, 1, 1]],
                }
            },
            "errors": {},
        },
        placements=(
            {
                "servers": [
                    {
                        "server": 0,
                        "variables": 1,
                        "kept_bytes": 640,
                        "read_bytes_per_step": 64,
                        "updated_bytes_per_step": 64,
                        "update_s_per_step": 1e-5,
                    }
                ],
                "variables": [
                    {
                        "variable": "table_1",
                        "server": 0,
                        "why": "bytes",
                        "meaning": "It has room.",
                        "kept_bytes": 640,
                    }
                ],
            },
        ),
        layouts=(
            LayoutPlan(
                "step",
                "x:2",
                "auto",
                PlanSums(0.5, 0.3, 0.1, 0.1, 1000),
                PlanSums(0.7, 0.3, 0.3, 0.1, 2000),
                "none",
                (LaidOut("MatMul", "S(0)", "B", 0.3, 0.1, 0.1, 500),),
                (Relayout("MatMul", "Add", "MatMul:0", "S(0)", "B", 0.1, 256),),
            ),
        ),
        gains=(
            Gain(
                "features",
                (Measured("stock", 10.0, 900.0, 5.0, 3.0), Measured("fused", 40.0, 6.0, 5.0, 1.0)),
            ),
        ),
    )


def large_report(tensors):
    """Return a report of a function with very many tensors; a tenth of them stays single."""
    named = [
        Tensor(
            f"edge_{i}_Gather", f"tower_{i % 7}/Gather_{i}", "concat", f"tower_{i % 7}/table_{i}",
            "float", 4 * (i % 1000),
        )
        for i in range(tensors)
    ]  # fmt: skip
    servers = [f"/job:ps/replica:0/task:{i}" for i in range(8)]
    fused, left = named[tensors // 10 :], named[: tensors // 10]
    groups = tuple(
        Group(server + _CPU, WORKER + _CPU, 1, False, "", tuple(fused[i :: len(servers)]))
        for i, server in enumerate(servers)
    )
    alone = tuple(Left(PS + _CPU, WORKER + _CPU, "large", "Too large.", one) for one in left)
    return Report(functions=(Function(WORKER, "train", 0, groups, alone),))
