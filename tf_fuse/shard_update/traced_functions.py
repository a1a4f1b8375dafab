# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Note the graphs of functions, so that an option that is set later applies to them, too."""

from __future__ import annotations

import weakref
from typing import Any

from tf_fuse._tensorflow.eager import concrete_function_callbacks
from tf_fuse.shard_update.runtime.dataset_captures import watch_datasets
from tf_fuse.shard_update.runtime.strategy_variables import watch_containers

# By name; of a rewritten function, the graph of the original.
graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def watch() -> None:
    """Note the functions, datasets and variables that are made, also before an option is set."""
    watch_datasets()
    watch_containers()
    concrete_function_callbacks.call_with_each(_remember)


def _remember(function: Any) -> None:
    name = function.name
    graphs[name.decode() if isinstance(name, bytes) else name] = function.graph
