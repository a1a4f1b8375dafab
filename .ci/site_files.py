# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Give MkDocs the pages at the same paths as in the repository, so that links lead there, too."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

# README.md becomes the start page.
_PATTERNS = (
    "*.md",
    "LICENSE",
    "deploy/**/*",
    "docs/**/*",
    "examples/keras_[mp]*s.py",
    "examples/quickstart_*.py",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of `docs_dir`, whose paths begin in it; keep those of the theme."""
    root = Path(config.config_file_path).parent
    paths = sorted(path for pattern in _PATTERNS for path in root.glob(pattern) if path.is_file())
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files(
        [
            File(str(path.relative_to(root)), str(root), config.site_dir, config.use_directory_urls)
            for path in paths
        ]
        + of_theme
    )


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Leave out the start page's navigation beside the text, which would have one entry."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return markdown
