# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bundle what reports use of d3 into tf_fuse/report/assets/d3.js. Needs npm.

    python third_party/d3/build.py
    python third_party/d3/build.py --list-in dist/tf_fuse.cdx.json  # only adds the packages there

Writes the same bytes on every machine: package-lock.json holds the version and the hash of each
package. To update d3, change package.json, then run `npm install --package-lock-only
--omit-lockfile-registry-resolved` here, and this program.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_BUNDLE = "tf_fuse/report/assets/d3.js"
_LICENSE = "third_party/d3/LICENSE"
_SUMS = "third_party/d3/SHA256SUMS"


def build(root: Path) -> None:
    """Write the bundle, its licences and their SHA-256 below `root`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in ("package.json", "package-lock.json", "used.js"):
            shutil.copy(_HERE / one, folder)
        _run(folder, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        options = ["--bundle", "--minify", "--format=iife", "--global-name=d3", "--target=es2020"]
        options += ["--charset=utf8", "--metafile=used.json", "--outfile=d3.js"]
        _run(folder, "node_modules/.bin/esbuild", "used.js", *options)
        made = json.loads((folder / "used.json").read_text(encoding="utf-8"))["outputs"]["d3.js"]
        used = [path for path, of in made["inputs"].items() if of["bytesInOutput"]]
        packages = sorted({one.split("/")[1] for one in used if one.startswith("node_modules/")})
        texts = _licenses([folder / "node_modules" / one for one in packages])
        code = (folder / "d3.js").read_text(encoding="utf-8")
    files = {_BUNDLE: f"/*!\n{texts}*/\n{code}", _LICENSE: texts}
    hashes = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}
    files[_SUMS] = "".join(f"{digest}  {path}\n" for path, digest in hashes.items())
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True)


def _licenses(folders: list[Path]) -> str:
    """Return the licence of each package, and equal ones once."""
    named: dict[str, list[str]] = {}
    for folder in folders:
        package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
        text = (folder / "LICENSE").read_text(encoding="utf-8").strip()
        title = f"{package['name']} {package['version']} ({package['license']})"
        named.setdefault(text, []).append(title)
    return "\n\n".join(f"{', '.join(titles)}\n\n{text}" for text, titles in named.items()) + "\n"


def components() -> list[dict[str, Any]]:
    """Return the bundled packages, as CycloneDX lists them."""
    lock = json.loads((_HERE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    text = (_ROOT / _LICENSE).read_text(encoding="utf-8")
    found = re.findall(r"([\w-]+) (\d+\.\d+\.\d+) \(([\w.-]+)\)", text)
    return [
        {
            "type": "library",
            "bom-ref": f"{name}=={version}",
            "name": name,
            "version": version,
            "purl": f"pkg:npm/{name}@{version}",
            "licenses": [{"license": {"id": license_id}}],
            "hashes": [{"alg": "SHA-512", "content": _hex(lock[f"node_modules/{name}"])}],
        }
        for name, version, license_id in sorted(found)
    ]


def _hex(locked: dict[str, Any]) -> str:
    """Return the SHA-512 of a package's archive."""
    return base64.b64decode(locked["integrity"].removeprefix("sha512-")).hex()


def _list_in(sbom: Path) -> None:
    """Add the bundled packages to a CycloneDX file."""
    listed = json.loads(sbom.read_text(encoding="utf-8"))
    listed.setdefault("components", []).extend(components())
    sbom.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Build below the folder that the command line names, or list the packages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=_ROOT, help="write below this folder")
    parser.add_argument("--list-in", type=Path, help="add the packages to this CycloneDX file")
    args = parser.parse_args(argv)
    if args.list_in:
        _list_in(args.list_in)
    else:
        build(args.root)


if __name__ == "__main__":
    main()
