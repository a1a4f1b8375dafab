# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""State for each operator what can be split, what becomes of the outputs, and what it costs."""

from tf_fuse.layout.operators.rule import Inner, Rule, Work
from tf_fuse.layout.operators.table import ENTRIES, TABLE, markdown, rule_of, without_rule

__all__ = ["ENTRIES", "TABLE", "Inner", "Rule", "Work", "markdown", "rule_of", "without_rule"]
