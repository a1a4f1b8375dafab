# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the commands of `tf-fuse` and `python -m tf_fuse`, which are the same.

`doctor` starts even where the native library cannot be loaded, and then says how to mend that.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import tf_fuse

# The keys of example_graphs.EXAMPLES.
_EXAMPLES = ("cond", "dense", "features", "loop", "rfc", "wide_deep")
# What fuse_grouping takes.
_GROUPINGS = ("level", "consumer", "cost", "dynamic")
# What `tf_fuse.layout.plan` takes.
_MODES = ("auto", "data", "propagate")
_FUSED_PROTOCOL = "grpc+fuse"
# What `launch --hosts` runs here and there, for each task: command, module.
_OF_HOSTS = {
    f"{name}-task": f"tf_fuse.cluster.launcher.hosts.{name}_task" for name in ("ssh", "host")
}
# Settings of `bench`: name, default, meaning.
_BENCH_SETTINGS = (
    ("tables", 100, "embedding tables of the model"),
    ("workers", 1, "tasks that run steps"),
    ("ps", 2, "parameter servers"),
    ("steps", 100, "steps of a round, of all workers together"),
    ("rounds", 3, "how often each mode runs, in fresh processes"),
)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser("plan", help="find the cheapest layouts of a function over a mesh")
    plan.add_argument(
        "program",
        nargs="?",
        metavar="MODULE:NAME",
        help="a Python function without parameters that returns (function, args), or (function, "
        "args, more), as tf_fuse.layout.plan takes them",
    )
    plan.add_argument(
        "--example", action="store_true", help="plan a bundled training step of two layers"
    )
    plan.add_argument("--mesh", default="x:2", help='axes and sizes, as "x:2;y:2"; x:2')
    plan.add_argument("--mode", choices=_MODES, default="auto", help="see docs/layout.md; auto")
    plan.add_argument("--rules", help='for mode propagate, as "batch:x;hidden:y"')
    plan.add_argument("--memory-limit", type=_positive, metavar="BYTES", help="of a device")
    plan.add_argument("--save", metavar="PATH", help="write the plan, to load it in a program")
    plan.add_argument(
        "--json", metavar="PATH", help="write layouts and costs; - for standard output"
    )


def _add_launch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    launch = commands.add_parser(
        "launch",
        help="start a program and its workers and servers on this machine; or, where Slurm or "
        "Kubernetes has started this process, its task of the job",
    )
    launch.add_argument(
        "--workers", type=_positive, help="1; with Slurm or TF_CONFIG, all tasks that are left"
    )
    launch.add_argument(
        "--ps",
        type=int,
        help="parameter servers; 0, for MultiWorkerMirroredStrategy, or those of TF_CONFIG",
    )
    launch.add_argument(
        "--hosts",
        metavar="FILE",
        help="start servers and workers on these hosts by ssh, in this folder; one on each line. "
        "Of the environment, PYTHONPATH and TF_*, GRPC_* and KERAS_* go there",
    )
    launch.add_argument(
        "--log-dir",
        metavar="DIR",
        help="of the tasks' logs; a temporary folder, or, if Slurm or Kubernetes has started this "
        "process, none",
    )
    launch.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often lost processes start again: a worker beside servers alone; with any other "
        "one, all of the job; 0",
    )
    launch.add_argument(
        "--port",
        type=_positive,
        help="with Slurm and Kubernetes, the first one on each host; 8888 and 2222",
    )
    launch.add_argument(
        "--health-port",
        type=int,
        metavar="PORT",
        help="answer /healthz, /readyz and /metrics on this port, 0 for any free one",
    )
    launch.add_argument(
        "--health-address",
        metavar="ADDRESS",
        help="where to listen for that; this machine alone, or, if Slurm or Kubernetes has started "
        "this process, all of its addresses",
    )
    launch.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        help="that the program has to end after SIGTERM; 4, in a container 1",
    )
    launch.add_argument(
        "--status-file",
        metavar="FILE",
        help="write the program's exit status there; a task that serves writes none",
    )
    launch.add_argument(
        "--protocol",
        default=_FUSED_PROTOCOL,
        help=f"of the tasks' servers; {_FUSED_PROTOCOL}, or grpc for stock TensorFlow's, which "
        "listen on all addresses",
    )
    launch.add_argument("program", help="a Python file")
    launch.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser(
        "report", help="one page: what was rewritten, what a step waits for, what is gained"
    )
    report.add_argument("--out", required=True, metavar="PAGE.html", help="the page to write")
    report.add_argument(
        "files", nargs="*", metavar="FILE.json", help="reports, and results of benchmarks"
    )
    report.add_argument("--dir", metavar="FOLDER", help="that a job named by TF_FUSE_REPORT_DIR")
    report.add_argument("--graph", metavar="FILE", help="GraphDef (.pb, .pbtxt) or SavedModel")
    report.add_argument("--example", choices=_EXAMPLES, help="a bundled graph")
    report.add_argument("--signature", default="serving_default", help="of a SavedModel")
    report.add_argument(
        "--target", metavar="HOST:PORT", help="a task of a running job; by default TF_CONFIG's"
    )
    report.add_argument(
        "--record", type=float, metavar="SECONDS", help="record the steps of the job meanwhile"
    )
    report.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="of a task's answer; 10"
    )
    report.add_argument("--trace", metavar="FILE.json", help="write the timeline for Perfetto")


def _add_scale(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan-cluster", help="predict steps per second and waiting of a job on many machines"
    )
    plan.add_argument(
        "--model",
        required=True,
        metavar="FILE|FOLDER|MODULE:NAME",
        help="a .keras file, a SavedModel, or a Python function that returns (step, args); see "
        "docs/scale.md",
    )
    plan.add_argument("--signature", help="of a SavedModel, the training step; its only one")
    plan.add_argument("--workers", type=_positive, default=1, help="tasks that run steps; 1")
    plan.add_argument("--ps", type=_positive, default=1, help="parameter servers; 1")
    plan.add_argument("--replicas", type=_positive, help="predict these, and no servers")
    plan.add_argument("--hosts", type=_positive, help="of the replicas; one for each")
    plan.add_argument(
        "--link", default="10Gbit,0.1ms", help="rate and delay between hosts; 10Gbit,0.1ms"
    )
    plan.add_argument("--cores", type=_positive, default=os.cpu_count() or 1, help="of each host")
    plan.add_argument("--one-host", action="store_true", help="all tasks share one host")
    plan.add_argument("--batch", type=_positive, default=64, help="examples of a step; 64")
    plan.add_argument("--sweep", metavar="ps=1..64", help="predict these numbers of servers, too")
    plan.add_argument("--plot", metavar="PATH", help="draw the sweep")
    plan.add_argument("--rates", metavar="PATH", help="what tf-fuse calibrate wrote")
    plan.add_argument("--json", metavar="PATH", help="write all figures; - for standard output")
    calibrate = commands.add_parser(
        "calibrate", help="measure what steps cost on this machine, for plan-cluster; seven minutes"
    )
    calibrate.add_argument("--out", metavar="PATH", help="the file to write")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if os.getpid() == 1:  # of a container
        from tf_fuse.cluster.launcher import first_process

        first_process.leave_to_child()
        tf_fuse._importing.first_signal.restore()
    parser = argparse.ArgumentParser(prog="tf-fuse")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check whether tf_fuse will work here")
    doctor.add_argument("--json", metavar="PATH", help="write the checks; - for standard output")
    explain = commands.add_parser("explain", help="show what is fused in a graph, and what is not")
    explain.add_argument(
        "graph",
        nargs="?",
        help="GraphDef (.pb, .pbtxt) or SavedModel folder with devices; or a weight_update_report "
        "or placement_report (.json)",
    )
    explain.add_argument("--signature", default="serving_default", help="of a SavedModel")
    explain.add_argument("--example", choices=_EXAMPLES, help="a bundled graph")
    explain.add_argument("--json", metavar="PATH", help="write the report; - for standard output")
    explain.add_argument(
        "--model-explorer",
        metavar="PATH",
        help="write the graphs before and after in Model Explorer's JSON",
    )
    explain.add_argument(
        "--grouping",
        choices=_GROUPINGS,
        help="the option fuse_grouping; here level by default, while runs group by cost",
    )
    explain.add_argument("--gpu", action="store_true", help="the option do_fuse_gpu")
    explain.add_argument(
        "--session", action="store_true", help="as in a session, by its master's stamps"
    )
    commands.add_parser("demo", help="train a job without and with tf_fuse, in about a minute")
    bench = commands.add_parser("bench", help="the same in several rounds, with settings of yours")
    bench.add_argument("--json", metavar="PATH", help="write the numbers; - for standard output")
    for name, default, text in _BENCH_SETTINGS:
        bench.add_argument(f"--{name}", type=_positive, default=default, help=f"{text}; {default}")
    _add_plan(commands)
    _add_launch(commands)
    _add_report(commands)
    _add_scale(commands)
    commands.add_parser("run", help="run one task of a cluster, as TF_CONFIG says", add_help=False)
    if arguments and arguments[0] in _OF_HOSTS:
        module = importlib.import_module(_OF_HOSTS[arguments[0]])
        status: int = module.main(arguments[1:])
        return status
    if arguments[:1] == ["run"]:
        tf_fuse._start()
        from tf_fuse.cluster import serve

        return serve.main(arguments[1:])
    args = parser.parse_args(arguments)
    if args.command == "doctor":
        from tf_fuse.cli import doctor as doctor_command

        return doctor_command.run(args.json)
    if args.command == "launch":
        from tf_fuse.cli import launch as launch_command

        return launch_command.run(args, commands.choices["launch"])
    tf_fuse._start()
    if args.command in ("demo", "bench"):
        from tf_fuse.cli import bench as bench_command

        if args.command == "demo":
            return bench_command.run(None, tables=100, workers=1, ps=2, steps=50, rounds=1)
        given = {name: getattr(args, name) for name, _, _ in _BENCH_SETTINGS}
        return bench_command.run(args.json, **given)
    if args.command == "calibrate":
        from tf_fuse.cli.scale import calibrate as calibrate_command

        return calibrate_command.run(args.out)
    if args.command == "plan-cluster":
        from tf_fuse.cli.scale import plan_cluster as plan_cluster_command

        return plan_cluster_command.run(args)
    if args.command == "report":
        from tf_fuse.cli import report as report_command

        return report_command.run(
            args.out, args.files, args.dir, args.graph, args.example, args.signature,
            args.target, args.record, args.timeout, args.trace,
        )  # fmt: skip
    if args.command == "plan":
        if (args.program is None) != args.example:
            parser.error("plan takes MODULE:NAME or --example, one of both")
        from tf_fuse.cli import plan as plan_command

        return plan_command.run(
            args.program, args.mesh, args.mode, args.rules, args.memory_limit, args.save, args.json
        )
    if (args.graph is None) == (args.example is None):
        parser.error("explain takes a file or --example, one of both")
    if args.graph is not None and args.graph.endswith(".json"):
        if args.grouping or args.gpu or args.session or args.model_explorer:
            parser.error("a report (.json) takes no option but --json")
        from tf_fuse.cli import explain_saved_report

        return explain_saved_report.run(args.graph, args.json)
    from tf_fuse.cli import explain as explain_command

    return explain_command.run(
        args.graph,
        args.example,
        args.signature,
        args.json,
        args.model_explorer,
        splitting=args.grouping or "",
        fuse_gpu=args.gpu,
        session=args.session,
    )
