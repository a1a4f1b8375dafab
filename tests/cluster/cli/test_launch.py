# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse launch`: jobs on this machine, what becomes of lost processes, and the end."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import forking
from tests.cluster.cli.launch_program import run, start
from tests.fault.coordinator import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]
# Counts on a server by 20 calls; its arguments are a file, and what to do if that is not there.
_TRAIN = """
    import os, pathlib, re, sys
    import tensorflow as tf
    import tf_fuse

    mark, to_kill, logs = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = tf.Variable(0)

    @tf.function
    def step():
        return count.assign_add(1)

    coordinator.schedule(step)
    coordinator.join()
    if to_kill and not mark.exists():
        mark.touch()
        ready = re.findall(r"ready .*pid=(\\d+)", (logs / f"{to_kill}.log").read_text())
        os.kill(int(ready[-1]), 9)
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    print("counted", int(count.numpy()), "by", resolver.rpc_layer, flush=True)
    os._exit(0)
"""


def _train(tmp_path, to_kill, *options, variables=forking.LAUNCHED):
    arguments = [tmp_path / "mark", to_kill, tmp_path / "logs"]
    options = ["--workers", "2", "--ps", "1", *options]
    return run(tmp_path, _TRAIN, *options, arguments=arguments, variables=variables)


def test_a_job_with_servers(tmp_path):
    status, output = _train(tmp_path, "", variables={})
    assert status == 0, output
    assert "[chief:0] counted 21 by grpc+fuse\n" in output
    logs = tmp_path / "logs"
    assert f"tf-fuse launch: 2 worker(s), 1 server(s); logs in {logs}\n" in output
    assert sorted(path.name for path in logs.iterdir()) == [
        "chief-0.log", "ps-0.log", "worker-0.log", "worker-1.log",
    ]  # fmt: skip
    pids = [int(pid) for pid in re.findall(r"ready .*pid=(\d+)", output)]
    assert len(pids) == 3 and not any(psutil.pid_exists(pid) for pid in pids)


def test_a_lost_worker_starts_again(tmp_path):
    status, output = _train(tmp_path, "worker-1", "--max-restarts", "1")
    assert status == 0, output
    assert "worker:1 ended, by SIGKILL: it starts again (1 of 1)" in output
    assert "[chief:0] counted 2" in output  # a call may have run twice


def test_a_lost_server_starts_the_job_again(tmp_path):
    status, output = _train(tmp_path, "ps-0", "--max-restarts", "1")
    assert status == 0, output
    assert "ps:0 ended, by SIGKILL: the job starts again (1 of 1)" in output
    assert output.count("[chief:0] counted 21 by") == 1
    assert (tmp_path / "logs" / "restart-1" / "ps-0.log").exists()


def test_a_lost_task_ends_a_job_without_restarts(tmp_path):
    status, output = _train(tmp_path, "worker-0")
    assert status == 1
    assert "worker:0 ended, by SIGKILL; --max-restarts is 0" in output


def test_workers_without_servers_are_copies_of_the_program(tmp_path):
    program = """
        import json, os, sys
        config = json.loads(os.environ["TF_CONFIG"])
        print(json.dumps([config["task"], len(config["cluster"]["worker"]), sys.argv[1:]]))
    """
    status, output = run(tmp_path, program, "--workers", "3", arguments=["--epochs", "2"])
    assert status == 0
    found = dict(re.findall(r"^\[(worker:\d)\] (.*)$", output, re.MULTILINE))
    assert {name: json.loads(line) for name, line in found.items()} == {
        f"worker:{i}": [{"type": "worker", "index": i}, 3, ["--epochs", "2"]] for i in range(3)
    }


# The second worker ends; the first one says its process, and waits.
_ONE_ENDS = """
    import json, os, signal, sys, time
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    if index:
        {end}
    signal.pause()
"""


@pytest.mark.parametrize(
    ("end", "status", "text"),
    [
        ("sys.exit(7)", 7, "worker:1 ended, status 7"),
        ("os.kill(os.getpid(), 9)", 137, "worker:1 ended, by SIGKILL"),
        ("os.kill(os.getpid(), 40)", 168, "worker:1 ended, by signal 40"),
    ],
)
def test_the_status_is_that_of_the_program_that_failed(tmp_path, end, status, text):
    found, output = run(tmp_path, _ONE_ENDS.format(end=end), "--workers", "2")
    assert found == status
    assert text in output


def test_a_program_that_fails_starts_again(tmp_path):
    program = """
        import os, sys
        count = int(open(sys.argv[1]).read()) + 1 if os.path.exists(sys.argv[1]) else 1
        with open(sys.argv[1], "w") as file:
            file.write(str(count))
        print("run", count)
        sys.exit(5 if count < 3 else 0)
    """
    arguments = [tmp_path / "count"]
    status, output = run(tmp_path, program, "--max-restarts", "2", arguments=arguments)
    assert status == 0
    assert [line for line in output.splitlines() if "run" in line] == [
        f"[worker:0] run {count}" for count in (1, 2, 3)
    ]
    assert "worker:0 ended, status 5: the job starts again (2 of 2)" in output


def test_a_terminal_has_a_line_with_the_state_of_each_task(tmp_path):
    """Below the lines of the logs, whose brackets are not taken for markup.

    The cursor is never hidden: whatever ends the launcher, the terminal is as before.
    """
    program = tmp_path / "program.py"
    program.write_text("import signal\nprint('begins [bold]', flush=True)\nsignal.pause()\n")
    screen, terminal = pty.openpty()
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tf_fuse", "launch", "--workers", "2", program],
        env={
            **os.environ,
            **{"PYTHONPATH": str(_ROOT), "TMPDIR": str(tmp_path)},
            **{"TERM": "xterm", "COLUMNS": "100"},
        },
        stdout=terminal,
    )
    os.close(terminal)
    seen = ""
    task = r"worker:{} runs, \d+ %, \d+ MB"  # A program that counts no steps has no rate.
    while not re.search(f"{task.format(0)} · {task.format(1)}", seen) or seen.count("begins") < 2:
        seen += os.read(screen, 4096).decode(errors="replace")
    assert "[worker:0] begins [bold]\r\n" in seen
    launcher.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more.
        while data := os.read(screen, 4096):
            seen += data.decode(errors="replace")
    assert "\x1b[1A\x1b[2K" in seen  # The line is drawn anew,
    assert "\x1b[?25l" not in seen
    assert launcher.wait(timeout=60) == 128 + signal.SIGTERM
    os.close(screen)


def test_the_job_goes_on_if_nobody_reads_its_output(tmp_path):
    """Its output is closed; it starts again as often as it may."""
    program = """
        import pathlib, sys
        runs = pathlib.Path(sys.argv[1])
        runs.write_text((runs.read_text() if runs.exists() else "") + "x")
        sys.exit(5 if len(runs.read_text()) < 4 else 0)
    """
    launcher = start(tmp_path, program, "--max-restarts", "3", arguments=[tmp_path / "runs"])
    launcher.stdout.close()
    assert launcher.wait(timeout=100) == 0
    assert (tmp_path / "runs").read_text() == "xxxx"


def test_a_full_pipe_does_not_keep_a_signal_waiting(tmp_path):
    program = "import signal\nprint('x' * 300000, flush=True)\nsignal.pause()\n"
    launcher = start(tmp_path, program)
    log = tmp_path / "logs" / "worker-0.log"
    wait_until(lambda: log.exists() and log.stat().st_size > 300000)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=100) == 128 + signal.SIGTERM


@pytest.mark.parametrize("status", [0, 3])
def test_logs_in_a_temporary_folder_stay_after_an_error(tmp_path, status):
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nsys.exit({status})\n")
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-m", "tf_fuse", "launch", program],
        env={**env, "PYTHONPATH": str(_ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    (folder,) = re.findall(r"1 worker\(s\); logs in (.*)", done.stdout)
    assert Path(folder).parent == tmp_path
    assert Path(folder).exists() == (status != 0)
    assert (f"tf-fuse launch: the logs stay in {folder}\n" in done.stdout) == (status != 0)


def test_all_output_of_the_tasks_is_shown_and_no_other(tmp_path, monkeypatch):
    """Also what no terminal can show, a last line without an end, and beside logs of others."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    logs = tmp_path / "logs"
    (logs / "worker-9.log").mkdir(parents=True)
    (logs / "other-0.log").write_text("of others\n")
    program = """
        import sys
        write = sys.stdout.buffer.write
        write("\u00e9\\n".encode() + b"\\xff\\n" + b"1 %\\r2 %\\r\\n" + b"x" * 200_000 + b"\\nlast")
    """
    status, output = run(tmp_path, program)
    assert status == 0
    lines = [line.removeprefix("[worker:0] ") for line in output.splitlines() if "[" in line]
    assert lines[:3] == ["\\xe9", "\\ufffd", "2 %"]  # of a line that was written over, its end
    assert "".join(lines[3:-1]) == "x" * 200_000
    assert lines[-1] == "last"
    assert "of others" not in output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--log-dir", __file__, __file__], f"--log-dir {__file__}: File exists"),
        (["no_such.py"], "no_such.py: no such file; launch starts a Python file"),
        (["--ps", "-1", __file__], "--ps must be 0 or more, got -1"),
        (["--max-restarts", "-2", __file__], "--max-restarts must be 0 or more, got -2"),
        (["--workers", "0", __file__], "'0' is not a whole number of 1 or more"),
        (["--port", "65536", __file__], "--port must be at most 65535, got 65536"),
        (["--port", "2222", __file__], "--port 2222 is for tasks that Slurm or Kubernetes has"),
        (["--health-port", "65536", __file__], "--health-port must be at most 65535, got 65536"),
        (["--health-address", "::1", __file__], "--health-address ::1 says where --health-port"),
        (["--health-port", "-1", __file__], "--health-port must be 0 or more, got -1"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    command = [sys.executable, "-m", "tf_fuse", "launch", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: tf-fuse launch ")
    assert text in done.stderr
