# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List all members of TensorFlow and Keras that this package replaces or reads, by file."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from tf_fuse._tensorflow.eager import (
    concrete_function_callbacks,
    context_servers,
    error_messages,
    experimental_options,
    function_calls,
    function_removal,
    gradient_tape,
)
from tf_fuse._tensorflow.graphs import (
    call_time_captures,
    control_dependencies,
    dataset_functions,
    functions,
    generated_ops,
    instance_keys,
    internal_api,
    rewrite_after_trace,
)
from tf_fuse._tensorflow.keras import (
    backups,
    global_state,
    models,
    optimizer,
    processes,
    trainer,
    variable,
)
from tf_fuse._tensorflow.members import Member
from tf_fuse._tensorflow.variables import (
    checkpoint_saver,
    coordinator,
    coordinator_closure,
    coordinator_results,
    coordinator_schedule,
    coordinator_worker,
    distributed_variable,
    parameter_server_strategy,
    resource_variable,
    sharded_variable,
    trackable_saveable,
)

#: The files, in the order of the table in docs/internals.md.
FILES: Final[tuple[ModuleType, ...]] = (
    experimental_options,
    function_calls,
    function_removal,
    context_servers,
    concrete_function_callbacks,
    gradient_tape,
    error_messages,
    rewrite_after_trace,
    generated_ops,
    control_dependencies,
    instance_keys,
    dataset_functions,
    functions,
    call_time_captures,
    internal_api,
    resource_variable,
    distributed_variable,
    parameter_server_strategy,
    coordinator,
    coordinator_results,
    coordinator_closure,
    coordinator_schedule,
    coordinator_worker,
    sharded_variable,
    trackable_saveable,
    checkpoint_saver,
    optimizer,
    variable,
    models,
    trainer,
    processes,
    backups,
    global_state,
)
MEMBERS: Final[tuple[Member, ...]] = tuple(one for file in FILES for one in file.MEMBERS)
