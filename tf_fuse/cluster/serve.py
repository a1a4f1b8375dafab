# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run one task of a cluster: read TF_CONFIG, start the task's server, serve until killed.

Two ways to start it:

* `python -m tf_fuse run`, the launcher's command;
* `python tf_fuse/cluster/serve.py`, by path. With the protocol `grpc` this imports TensorFlow only
  and never `tf_fuse`, so the process is a stock TensorFlow server.

TF_CONFIG is TensorFlow's own format; `rpc_layer` chooses the protocol (`grpc` when absent):

    TF_CONFIG='{"cluster": {"worker": ["a:2222"], "ps": ["b:2222"]},
                "task": {"type": "ps", "index": 0}, "rpc_layer": "grpc+fuse"}'

Only the standard library is imported at module level: this file must run outside its package.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

STOCK_PROTOCOL = "grpc"
FUSED_PROTOCOL = "grpc+fuse"
READY_PREFIX = "tf_fuse serve: ready"

EXIT_OK = 0
EXIT_CONFIG = 2
EXIT_START_FAILED = 3
EXIT_PORT_IN_USE = 4

_EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host:2222"], "ps": ["host:2223"]}, '
    '"task": {"type": "worker", "index": 0}, "rpc_layer": "grpc+fuse"}\''
)


class ConfigError(ValueError):
    """TF_CONFIG is missing or does not describe this task."""


class PortInUseError(OSError):
    """The task's port is taken by another process."""


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The configuration of one task.

    Attributes:
      cluster: job name to the addresses ("host:port") of its tasks, by index.
      job, index: this task's place in `cluster`.
      protocol: "grpc" or "grpc+fuse" (or another protocol TensorFlow has a server for).
    """

    cluster: dict[str, dict[int, str]]
    job: str
    index: int
    protocol: str

    @property
    def name(self) -> str:
        """The task as "job:index"."""
        return f"{self.job}:{self.index}"

    @property
    def address(self) -> str:
        """The task's own address, "host:port"."""
        return self.cluster[self.job][self.index]

    @property
    def port(self) -> int:
        """The port the task's server listens on."""
        return int(self.address.rpartition(":")[2])


def parse_tf_config(text: str | None, outside: Collection[str] = ()) -> TaskConfig:
    """Parse and check TF_CONFIG.

    Args:
      text: the value of TF_CONFIG, or None when it is not set.
      outside: jobs whose tasks need not be in the cluster.

    Raises:
      ConfigError: TF_CONFIG is missing, not JSON, or its task is not in its cluster; the text says
        what was found and what was expected.
    """
    if not text or not text.strip():
        raise ConfigError(f"TF_CONFIG is not set; expected something like {_EXAMPLE}")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as e:
        raise ConfigError(f"TF_CONFIG is not JSON: {e}; found {text[:200]!r}") from e
    if not isinstance(config, Mapping):
        raise ConfigError(f"TF_CONFIG must be a JSON object, found {type(config).__name__}")
    cluster = _parse_cluster(config.get("cluster"))
    task = config.get("task")
    if not isinstance(task, Mapping) or "type" not in task or "index" not in task:
        raise ConfigError(
            'TF_CONFIG["task"] must be {"type": JOB, "index": NUMBER}, found ' + json.dumps(task)
        )
    job, index = task["type"], task["index"]
    beside = job in outside and job not in cluster
    if not isinstance(job, str) or (job not in cluster and not beside):
        raise ConfigError(
            f'TF_CONFIG["task"]["type"] is {job!r}, but TF_CONFIG["cluster"] has the jobs '
            f"{sorted(cluster)}"
        )
    if isinstance(index, bool) or not isinstance(index, int | str) or not str(index).isdecimal():
        raise ConfigError(f'TF_CONFIG["task"]["index"] must be a whole number, found {index!r}')
    if not beside and int(index) not in cluster[job]:
        raise ConfigError(
            f'TF_CONFIG["task"]["index"] is {index}, but TF_CONFIG["cluster"]["{job}"] has the '
            f"indices {sorted(cluster[job])}"
        )
    protocol = config.get("rpc_layer") or STOCK_PROTOCOL
    if not isinstance(protocol, str):
        raise ConfigError(f'TF_CONFIG["rpc_layer"] must be a string, found {protocol!r}')
    return TaskConfig(cluster, job, int(index), protocol)


def _parse_cluster(cluster: Any) -> dict[str, dict[int, str]]:
    """Check TF_CONFIG["cluster"]; a job is a list of addresses or an object from index to one."""
    if not isinstance(cluster, Mapping) or not cluster:
        raise ConfigError(
            'TF_CONFIG["cluster"] must be an object of job name to addresses, found '
            + json.dumps(cluster)
        )
    parsed: dict[str, dict[int, str]] = {}
    for job, tasks in cluster.items():
        if isinstance(tasks, list):
            by_index = dict(enumerate(tasks))
        elif isinstance(tasks, Mapping) and all(str(k).isdecimal() for k in tasks):
            by_index = {int(k): v for k, v in tasks.items()}
        else:
            raise ConfigError(
                f'TF_CONFIG["cluster"]["{job}"] must be a list of "host:port", found '
                + json.dumps(tasks)
            )
        for index, address in by_index.items():
            host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ConfigError(
                    f'TF_CONFIG["cluster"]["{job}"][{index}] must be "host:port" with a port from '
                    f"1 to 65535, found {address!r}"
                )
        parsed[job] = by_index
    return parsed


def check_port(config: TaskConfig) -> None:
    """Raise PortInUseError when the task's port cannot be bound on this machine.

    TensorFlow binds every address of the machine, so the wildcard address is what is tried.
    SO_REUSEADDR is set as gRPC sets it: a port in TIME_WAIT is free, a listening one is not.
    """
    try:
        family = socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("", config.port))
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            raise PortInUseError(
                errno.EADDRINUSE,
                f"port {config.port} of task {config.name} (address {config.address}) is in use "
                "by another process on this machine; stop that process or give the task another "
                'port in TF_CONFIG["cluster"] of every task',
            ) from e
        if e.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        # This machine has no IPv6: leave the check to TensorFlow's own bind.


def start_server(
    config: TaskConfig,
    inter_op: int | None = None,
    intra_op: int | None = None,
    cpus: int | None = None,
    session_config_text: str | None = None,
) -> Any:
    """Start the task's TensorFlow server; import tf_fuse first if the protocol needs it.

    Args:
      config: the task, as `parse_tf_config` has found it in this process's environment. There
        TensorFlow's own resolver reads it once more, for the server.
      inter_op: threads that run operations; None for TensorFlow's default, as for the next two.
      intra_op: threads that one operation may use.
      cpus: logical CPU devices.
      session_config_text: a ConfigProto in protobuf's text format, such as
        "rpc_options { num_channels_per_target: 4 }"; gets the three numbers.

    Returns:
      The running `tf.distribute.Server`. The process must leave with `os._exit`: TensorFlow does
      not support stopping a server.

    Raises:
      PortInUseError: the port is taken.
      ConfigError: `session_config_text` is not a ConfigProto.
      ImportError: the protocol is "grpc+fuse" and the plugin cannot be loaded.
      tf.errors.OpError: TensorFlow has no server for the protocol, or cannot start it.
    """
    check_port(config)
    # Without this a worker whose peer died waits for it instead of reporting the failure to the
    # coordinator (tf.distribute.experimental.ParameterServerStrategy asks for it).
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    import tensorflow as tf
    from google.protobuf import text_format

    if config.protocol == FUSED_PROTOCOL:
        import tf_fuse  # noqa: F401  (loading the plugin registers the protocol)
    try:
        session_config = text_format.Parse(session_config_text or "", tf.compat.v1.ConfigProto())
    except text_format.ParseError as e:
        text = f"--session-config is not a ConfigProto in text format: {e}"
        raise ConfigError(f"{text}; found {session_config_text!r}") from e
    if inter_op is not None:
        session_config.inter_op_parallelism_threads = inter_op
    if intra_op is not None:
        session_config.intra_op_parallelism_threads = intra_op
    if cpus is not None:
        session_config.device_count["CPU"] = cpus
    # TF_CONFIG of a TFJob has no "rpc_layer".
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer=config.protocol)
    try:
        return tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=resolver.rpc_layer,
            config=session_config,
        )
    except tf.errors.OpError:
        check_port(config)  # another process may have taken it since the first check
        raise


def watch_lifeline(fd: int, end: Callable[[], object] = lambda: os._exit(EXIT_OK)) -> None:
    """End this process when the other end of the inherited pipe `fd` is closed.

    The kernel closes the parent's end however the parent dies, SIGKILL included, so no task
    outlives the process that started it.
    """

    def wait() -> None:
        while os.read(fd, 1):
            pass
        end()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tf_fuse run", description="Run the task that TF_CONFIG describes, until killed."
    )
    parser.add_argument("--protocol", help="instead of TF_CONFIG's rpc_layer")
    parser.add_argument("--inter-op", type=int, help="inter_op_parallelism_threads of the server")
    parser.add_argument("--intra-op", type=int, help="intra_op_parallelism_threads of the server")
    parser.add_argument("--cpus", type=int, help="logical CPU devices of the server")
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve the counters to Prometheus on this port, 0 for any free one (grpc+fuse only)",
    )
    parser.add_argument(
        "--health-port",
        type=int,
        metavar="PORT",
        help="answer /healthz, /readyz and /metrics on this port, 0 for any free one",
    )
    for name in ("metrics", "health"):
        parser.add_argument(
            f"--{name}-address",
            default="127.0.0.1",
            metavar="ADDRESS",
            help="where to listen for that; this machine alone by default",
        )
    parser.add_argument(
        "--profiler-port",
        type=int,
        metavar="PORT",
        help="serve TensorFlow's profiler on this port, on all addresses of the machine",
    )
    parser.add_argument(
        "--session-config", help="the server's ConfigProto, in protobuf's text format"
    )
    parser.add_argument("--ready-fd", type=int, help="file descriptor to write the ready line to")
    parser.add_argument("--lifeline-fd", type=int, help="leave when this pipe's other end closes")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the task that TF_CONFIG describes.

    Prints one line, `tf_fuse serve: ready task=... address=... protocol=... pid=...`, once the
    server accepts calls (also to --ready-fd, which is then closed).

    Args:
      argv: command line without the program's name; None for the process's own.

    Returns:
      Only if it cannot start: 2 configuration, 3 start, 4 port in use.
    """
    args = _parser().parse_args(argv)
    if args.lifeline_fd is not None:
        watch_lifeline(args.lifeline_fd)

    def fail(status: int, text: str) -> int:
        print(f"tf_fuse serve: error: {text}", file=sys.stderr, flush=True)
        return status

    try:
        config = parse_tf_config(os.environ.get("TF_CONFIG"))
        if args.protocol:
            config = dataclasses.replace(config, protocol=args.protocol)
        if args.metrics_port is not None and config.protocol != FUSED_PROTOCOL:
            runs = f"this task runs {config.protocol!r}"
            raise ConfigError(f"--metrics-port needs the protocol {FUSED_PROTOCOL!r}, {runs}")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        health = None
        if args.health_port is not None:
            from tf_fuse.cluster import http_endpoints

            task = "localhost", config.port
            health = http_endpoints.TaskHealth(args.health_address, args.health_port, task)
        server = start_server(config, args.inter_op, args.intra_op, args.cpus, args.session_config)
        if args.metrics_port is not None:
            from tf_fuse.cluster import http_endpoints

            http_endpoints.serve_metrics(args.metrics_address, args.metrics_port)
        if args.profiler_port is not None:
            import tensorflow as tf

            tf.profiler.experimental.server.start(args.profiler_port)
    except ConfigError as e:
        return fail(EXIT_CONFIG, str(e))
    except Exception as e:  # any reason not to start is reported the same way, with the task
        if isinstance(e, OSError) and e.errno == errno.EADDRINUSE:
            return fail(EXIT_PORT_IN_USE, str(e.strerror))
        what = f"task {config.name} at {config.address} with protocol {config.protocol!r}"
        return fail(EXIT_START_FAILED, f"cannot start {what}: {type(e).__name__}: {e}")
    if health is not None:
        health.has_started = True
    line = (
        f"{READY_PREFIX} task={config.name} address={config.address} "
        f"protocol={config.protocol} pid={os.getpid()}"
    )
    print(line, flush=True)
    if args.ready_fd is not None:
        with contextlib.suppress(BrokenPipeError):  # the launcher stopped listening
            os.write(args.ready_fd, line.encode() + b"\n")
        os.close(args.ready_fd)
    server.join()
    os._exit(EXIT_OK)


if __name__ == "__main__":
    # If this file is run by path, Python puts this folder first on sys.path. Replace it by the
    # package's parent, for `import tf_fuse`.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    _status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status)
