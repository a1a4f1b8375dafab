# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The part of d3 that pages hold: bytes, versions, licences, and that it can be built again."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.report.made_reports import whole_report
from tf_fuse.report import render

_ROOT = Path(__file__).resolve().parents[4]
_FOLDER = _ROOT / "third_party" / "d3"
_BUNDLE = _ROOT / "tf_fuse" / "report" / "assets" / "d3.js"


def _bundled():
    """Return the packages that the licences name, with their versions."""
    text = (_FOLDER / "LICENSE").read_text(encoding="utf-8")
    return dict(re.findall(r"(d3-\w+|internmap) (\d+\.\d+\.\d+) \((?:ISC|BSD-3-Clause)\)", text))


def test_the_files_have_the_hashes_that_are_written_down():
    sums = (_FOLDER / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    wanted = {path: digest for digest, path in (line.split("  ") for line in sums)}
    assert sorted(wanted) == ["tf_fuse/report/assets/d3.js", "third_party/d3/LICENSE"]
    for path, digest in wanted.items():
        assert hashlib.sha256((_ROOT / path).read_bytes()).hexdigest() == digest, path


def test_what_is_bundled_is_pinned_with_its_source_and_in_the_docs():
    lock = json.loads((_FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    asked = json.loads((_FOLDER / "package.json").read_text(encoding="utf-8"))
    bundled = _bundled()
    assert len(bundled) == 13 and set(asked["dependencies"]) <= set(bundled)
    page = " ".join((_ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").split())
    for name, version in bundled.items():
        locked = lock[f"node_modules/{name}"]
        assert locked["version"] == version
        assert locked["integrity"].startswith("sha512-")
    for name, version in {**asked["dependencies"], **asked["devDependencies"]}.items():
        assert f"`{name}` {version}" in page


def test_a_page_holds_the_licences_and_asks_no_host():
    text = render.page(whole_report())
    licences = (_FOLDER / "LICENSE").read_text(encoding="utf-8")
    assert "Mike Bostock" in licences and "Robert Penner" in licences
    assert licences in text
    # Namespaces are names; nothing asks them.
    hosts = set(re.findall(r"https?://[\w./-]+", text)) - {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/2000/xmlns/",
        "http://www.w3.org/XML/1998/namespace",
    }
    assert hosts == set()


def test_the_list_of_packages_names_them(tmp_path):
    sbom = tmp_path / "sbom.json"
    sbom.write_text('{"bomFormat": "CycloneDX", "components": [{"name": "numpy"}]}')
    subprocess.run([sys.executable, _FOLDER / "build.py", "--list-in", sbom], check=True)
    numpy, *added = json.loads(sbom.read_text())["components"]
    assert numpy == {"name": "numpy"}
    assert {one["name"]: one["version"] for one in added} == _bundled()
    for one in added:
        assert one["purl"] == f"pkg:npm/{one['name']}@{one['version']}"
        assert re.fullmatch("[0-9a-f]{128}", one["hashes"][0]["content"])
    licences = {one["licenses"][0]["license"]["id"] for one in added}
    assert licences == {"BSD-3-Clause", "ISC"}


@pytest.mark.slow
def test_the_bundle_can_be_built_again(tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: sudo apt-get install npm")
    if subprocess.run(["npm", "ping"], capture_output=True, timeout=120).returncode:
        pytest.skip("npm reaches no registry")
    build = [sys.executable, _FOLDER / "build.py", "--root", tmp_path]
    subprocess.run(build, check=True, timeout=240)
    for path in (_BUNDLE, _FOLDER / "LICENSE", _FOLDER / "SHA256SUMS"):
        again = tmp_path / path.relative_to(_ROOT)
        assert again.read_bytes() == path.read_bytes(), path.name
