# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define all options: names, types, what they do, and which values they take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
      key: its name.
      type: of its values. An int must be 0 or more.
      doc: what it does.
      choices: the values that it takes; None for any.
      in_sessions: whether it applies to `tf.compat.v1.Session`, too.
      in_config: whether processes that run functions need it; otherwise only the process that
        calls functions uses it.
      none_of: ints that it does not take.
      sends_false: whether a process that needs it and finds no value takes it to be on.
      is_pattern: whether its values are regular expressions.
    """

    key: str
    type: type
    doc: str
    choices: tuple[str, ...] | None = None
    in_sessions: bool = True
    in_config: bool = True
    none_of: tuple[int, ...] = ()
    sends_false: bool = False
    is_pattern: bool = False


OPTIONS: dict[str, Option] = {
    option.key: option
    for option in (
        Option(
            "tf_fuse",
            bool,
            "Switch on every option that keeps all bits and has not made a step slower in any "
            "benchmark: do_fuse_recv, shard_weight_update and shard_weight_update_exact. Each of "
            "them that the program sets itself keeps its value.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "do_fuse_recv",
            bool,
            "Receive the tensors of one task together, in one RPC per graph level. Needs servers "
            "that run the protocol 'grpc+fuse'. Applies to functions called from then on.",
        ),
        Option(
            "do_pack_handles",
            bool,
            "Pass the handles of a server's variables to a function as one value. On unless set "
            "to False, but only together with do_fuse_recv.",
            in_sessions=False,
        ),
        Option(
            "fuse_operations",
            bool,
            "Run the small operations of a task that wait for the same tensors, such as lookups "
            "and updates of rows, as one operation. On unless set to False, but only together "
            "with do_fuse_recv.",
            sends_false=True,
        ),
        Option(
            "fuse_lookups_combine",
            bool,
            "Add up the rows of a lookup on its parameter server (the combiners of sparse lookups, "
            "sums and means of segments or of an axis), send the sums, and make the gradients of "
            "the rows there, too. Bits stay. Off unless set to True: ids that repeat much across "
            "a batch can make the rows, which stock sends once each, fewer than the sums. Applies "
            "to functions called for the first time from then on.",
            in_sessions=False,
        ),
        Option(
            "fuse_lookups_unique",
            bool,
            "Send each id of a lookup on parameter servers once per step, get its row once, and "
            "add the gradients of equal ids on the worker, where a server only adds them up. Off "
            "unless set to True: where an id repeats, they are added in another order, so last "
            "bits of weights may change. Applies to functions called for the first time from then "
            "on.",
            in_sessions=False,
        ),
        Option(
            "do_fuse_gpu",
            bool,
            "Together with do_fuse_recv: fuse receives from and to GPUs too. Off unless set to "
            "True: it was tried with one kind of GPU only.",
        ),
        Option(
            "fuse_grouping",
            str,
            "Which tensors of a graph level share a call: all except those that would wait longer "
            "than a call takes ('cost', the default), all of them ('level'), or those that the "
            "same node uses first ('consumer'). 'dynamic': those that wait at the same time, of "
            "any level.",
            ("level", "consumer", "cost", "dynamic"),
        ),
        Option(
            "fuse_rpc_us",
            float,
            "For 'cost': by how many microseconds a call delays those after it; 60 unless given.",
        ),
        Option(
            "fuse_gigabytes_per_s",
            float,
            "For 'cost': how fast a tensor travels, in 1e9 bytes per second; 1.0 unless given.",
        ),
        Option(
            "compress",
            str,
            "'bfloat16': rows and gradients of trained float32 variables travel between workers "
            "and parameter servers in that type, half the bytes, in functions that are traced from "
            "then on. Each value is rounded; what a dense gradient loses is added to the next one. "
            "Empty, the default: nothing is rounded.",
            ("", "bfloat16"),
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "compress_variables",
            str,
            "Together with compress: a regular expression; only variables in whose name it is "
            "found are compressed. Empty, the default: all.",
            in_sessions=False,
            in_config=False,
            is_pattern=True,
        ),
        Option(
            "shard_weight_update",
            bool,
            "Shard the update of the weights over the replicas of a MultiWorkerMirroredStrategy or "
            "a MirroredStrategy, so that each computes a part and keeps that part of the "
            "optimizer's state. Needs workers that run the protocol 'grpc+fuse'. Applies to "
            "functions that are called for the first time from then on. Under a "
            "ParameterServerStrategy, switch place_variables, gather_on_servers and "
            "fuse_weight_update on. Each of them that the program sets itself keeps its value.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "place_variables",
            bool,
            "Place variables of a ParameterServerStrategy that are made from then on by their "
            "bytes and traffic, and let Keras 3 use variables in pieces as whole ones. On where "
            "shard_weight_update is, unless set to False.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "gather_on_servers",
            bool,
            "Gather rows of a variable on its parameter server instead of reading all of it, in "
            "functions that are traced from then on. On where shard_weight_update is, unless set "
            "to False.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_always",
            bool,
            "Together with shard_weight_update: shard an update even if the step takes longer by "
            "estimate; the optimizer's state then still takes less memory.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_exact",
            bool,
            "Together with shard_weight_update: do not shard updates whose bits would change "
            "because sums (norms, means) are added in another order. Together with "
            "fuse_weight_update on parameter servers: do not fuse updates whose bits may change.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_group_size",
            int,
            "Together with shard_weight_update: how many replicas share one copy of the "
            "optimizer's state, a divisor of their number. 0, the default: all of them. Otherwise "
            "each group of this many consecutive replicas has a copy, so that the state survives a "
            "replica that dies, and fewer replicas exchange weights.",
            in_sessions=False,
            in_config=False,
            none_of=(1,),
        ),
        Option(
            "shard_weight_update_gather",
            str,
            "Together with shard_weight_update: gather the new weights at the end of a step "
            "('end', the default), or right before their first use in the next step ('first_use'); "
            "then they stay sharded between steps, as the optimizer's state.",
            ("end", "first_use"),
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "shard_weight_update_gather_bfloat16",
            bool,
            "Together with shard_weight_update_gather='first_use': a weight that the step only "
            "casts to bfloat16 (or float16) travels in that type.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "compile_weight_update",
            bool,
            "Compile the elementwise operations of each weight's update with XLA, whether it is "
            "sharded or not, on CPUs. Off unless set to True: the last bits of weights may change. "
            "Applies to functions called from then on.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "fuse_weight_update",
            bool,
            "Fuse the elementwise operations of each weight's update to one operation, whether it "
            "is sharded or not, with one pass over memory and under one lock. Values have the same "
            "bits, except for some optimizers on parameter servers. "
            "By default on for functions that shard_weight_update examines or that have parameter "
            "servers while that option is on, and off for all others. Has no effect together "
            "with compile_weight_update. Applies to functions called from then on.",
            in_sessions=False,
            in_config=False,
        ),
        Option(
            "steps_in_flight",
            int,
            "Let a ClusterCoordinator that is made from then on have this many calls of each "
            "worker under way at a time: while a worker computes one step, rows and gradients of "
            "others travel. A step may then read weights that lack the updates of those others. 1, "
            "the default: TensorFlow's order. Needs servers that run the protocol 'grpc+fuse'.",
            in_sessions=False,
            in_config=False,
            none_of=(0,),
        ),
        Option(
            "split_matmuls",
            bool,
            "Multiply by the pieces of a variable that a partitioner has split, instead of "
            "concatenating them on the worker, in functions that are traced from then on. Off "
            "unless set to True: sums are added in another order, so last bits differ.",
            in_sessions=False,
            in_config=False,
        ),
    )
}
