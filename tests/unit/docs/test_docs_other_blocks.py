# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Blocks in docs/ that are not Python: commands run, configurations are read.

tests/cluster/docs runs the blocks of Python and of Bash.
"""

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tf_fuse import cli

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Blocks that show what was printed, or are drawings.
_OUTPUT = {
    "layout.md": 1,
    "parameter_server_updates.md": 1,
    "semantics.md": 1,
    "tutorial.md": 2,
    "watching.md": 1,
}


def _blocks(page):
    """The blocks of a page that are neither Python nor Bash."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    return [body for kind, body in _BLOCK.findall(text) if kind not in ("python", "bash")]


def test_each_page_with_such_blocks_is_here():
    counts = {page.name: len(_blocks(page.name)) for page in _DOCS.glob("*.md")}
    run_here = {
        "collectives.md": 1, "fuse_recv.md": 1, "report.md": 1, "scale.md": 1,
        "security.md": 3, "weight_update.md": 1,
    }  # fmt: skip
    # That one command is doctor's own, whose test compares it.
    expected = {**run_here, **_OUTPUT, "dependencies.md": 1}
    assert {page: count for page, count in counts.items() if count} == expected


def test_commands_of_scale_have_their_arguments(monkeypatch):
    given = {"calibrate": [], "plan_cluster": []}
    for name in given:
        module = importlib.import_module(f"tf_fuse.cli.scale.{name}")
        monkeypatch.setattr(module, "run", lambda args, name=name: given[name].append(args) or 0)
    (block,) = _blocks("scale.md")
    commands = [line.partition("#")[0].split() for line in block.splitlines()]
    assert commands[0] == ["pip", "install", '"tf_fuse[scale]"']
    assert [cli.main(words[1:]) for words in commands[1:]] == [0, 0, 0]
    plan, replicas = given["plan_cluster"]
    assert (plan.model, plan.workers, plan.ps, plan.link) == (
        "model.keras", 400, 20, "10Gbit,0.1ms",
    )  # fmt: skip
    assert (plan.cores, plan.sweep) == (16, "ps=1..64")
    assert (replicas.model, replicas.replicas, replicas.hosts) == ("model.keras", 64, 8)
    assert len(given["calibrate"]) == 1


@pytest.mark.parametrize("page", ["collectives.md", "weight_update.md"])
def test_configurations_of_tasks_are_json(page):
    (block,) = _blocks(page)
    config = json.loads(re.search(r"TF_CONFIG='(.*?)'", block, re.DOTALL)[1])
    assert sorted(config) == ["cluster", "rpc_layer", "task"]
    assert config["rpc_layer"] == "grpc+fuse"
    assert config["task"]["index"] < len(config["cluster"][config["task"]["type"]])


def test_example_of_explain_runs(capsys):
    _, example = _blocks("fuse_recv.md")[0].splitlines()
    command, names = example.split("#")
    assert cli.main(command.split()[3:]) == 0
    assert capsys.readouterr().out.startswith("Fused receives")
    for name in names.strip().split(", "):
        assert cli.main(["explain", "--example", name]) == 0
        assert capsys.readouterr().out


def test_commands_of_the_report_page(tmp_path, capsys):
    (block,) = _blocks("report.md")
    commands = [line for line in block.splitlines() if line.startswith("tf-fuse report ")]
    assert len(commands) == 3
    with pytest.raises(SystemExit):
        cli.main(["report", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out))
    assert set(re.findall(r"--[a-z]+", block)) <= options
    (example,) = re.findall(r"--example \w+", block)
    page = tmp_path / "report.html"
    assert cli.main(["report", "--out", str(page), *example.split()]) == 0
    assert min(page.stat().st_size, page.with_suffix(".json").stat().st_size) > 1000


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed: nftables")
def test_rules_of_the_firewall_are_read():
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no network namespaces")
    done = subprocess.run(
        [*alone, "nft", "--check", "--file", "-"],
        input=_blocks("security.md")[0],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_certificates_are_made_for_the_host_that_is_checked(tmp_path):
    tunnel, commands = _blocks("security.md")[1:]
    (host,) = re.findall(r"^checkHost = (.*)$", tunnel, re.MULTILINE)
    verify = f"openssl verify -CAfile ca.pem -verify_hostname {host} host.pem"
    done = subprocess.run(
        ["bash", "-e", "-c", f"{commands}\n{verify}"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "host.pem: OK"
