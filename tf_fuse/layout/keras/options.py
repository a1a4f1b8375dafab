# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check a model that is to run by plans, and the options of these."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tf_fuse._tensorflow.keras.models import STEPS
from tf_fuse.layout.types.dimension_rules import LayoutRules
from tf_fuse.layout.types.errors import LayoutError, raise_if

# Options of `function_problem` and `FunctionProblem.search` that a model's plans take, too.
OF_PROBLEM: Final = ("allowed", "links", "memory_limit_bytes", "rates", "steps")
_OTHERS: Final = ("batch",)
OF_SEARCH: Final = ("constraints", "dimensions", "layouts", "limits", "mode", "renamed", "rules")


def without_rules(
    rules: LayoutRules | str, names: Mapping[str, Iterable[Any]], left: Mapping[str, Iterable[Any]]
) -> LayoutRules | None:
    """Remove the rules of dimensions that only omitted tensors have."""
    rules = LayoutRules.from_text(rules) if isinstance(rules, str) else rules
    had = {one for mine in names.values() for one in mine}
    have = {one for mine in left.values() for one in mine}
    kept = [(name, axis) for name, axis in rules.rules if name in have or name not in had]
    return LayoutRules(kept) if kept or left else None


def check(model: Any, options: Mapping[str, Any]) -> None:
    """Check a model and the options of its plans.

    Raises:
      LayoutError: the model is of another kind or runs by plans, or an option is unknown.
    """
    missing = [one for one in STEPS if not hasattr(model, f"make_{one}_function")]
    if missing:
        raise LayoutError(
            f"a Keras model is laid out, got {model!r}; give a keras.Model on the backend "
            "'tensorflow', or a tf_keras.Model, and a function to layout.plan"
        )
    if any(isinstance(getattr(model, f"make_{one}_function"), functools.partial) for one in STEPS):
        raise LayoutError(
            f"model {model.name!r} runs by plans already; release what layout.lay_out returned"
        )
    check_options(options)


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of plans.

    Raises:
      LayoutError: one is unknown.
    """
    known = sorted((*OF_PROBLEM, *OF_SEARCH, *_OTHERS))
    raise_if([
        f"there is no option {name!r} for the plans of a model; there are: {', '.join(known)}"
        for name in sorted(set(options) - set(known))
    ])  # fmt: skip
