# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the JSON of `explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(data: Any, json_path: str | None) -> bool:
    """Write data to a file, or print it; return whether it was printed instead of tables.

    Args:
      data: plain data.
      json_path: of the file; "-" prints, None or "" does nothing.

    Raises:
      OSError: the file cannot be written.
    """
    if json_path == "-":
        print(json.dumps(data, indent=1))
        return True
    if json_path:
        Path(json_path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return False
