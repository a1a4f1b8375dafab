# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md quotes messages that the sources have."""

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = (_ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_OF_TENSORFLOW = ("No server factory registered", "Collective ops is aborted by")


def _sources():
    """All sources, in which the pieces of a literal are one."""
    texts = [
        path.read_text(encoding="utf-8")
        for folder, ending in (("tf_fuse", "*.py"), ("cc", "*.cc"), ("cc", "*.h"))
        for path in sorted((_ROOT / folder).rglob(ending))
    ]
    return re.sub(r'"\s*(?:<<\s*)?[fr]?"', "", "\n".join(texts))


def test_messages_are_those_of_the_sources():
    cells = re.findall(r"^\| (`.*?`) \|", _PAGE, re.MULTILINE)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    ours = [message for message in messages if not message.startswith(_OF_TENSORFLOW)]
    assert len(messages) == len(ours) + len(_OF_TENSORFLOW)
    sources = _sources()
    # An ellipsis stands for what differs from one message to the next.
    fragments = {fragment.strip(" ;:,?") for message in ours for fragment in message.split("…")}
    assert sorted(fragment for fragment in fragments if fragment not in sources) == []
