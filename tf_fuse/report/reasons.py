# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Say in words why a receive was left alone."""

#: Reason in a report to one sentence for people; docs/fuse_recv.md says more.
REASONS = {
    "alone": "No group has the same devices, depth and blocking operations, or may have it join.",
    "client_terminated": "A fed or fetched value; the client waits for it under its own key.",
    "cyclic_graph": "The partitions depend on one another in a circle.",
    "host_memory": "Its key depends on the function's call frame.",
    "key_too_long": "Its rendezvous key is longer than 4096 bytes.",
    "large": "Too large for a frame; it would only hold the others up.",
    "loop_frame": "What starts it in each iteration of its loop may be dead.",
    "may_be_dead": "A control edge into it may be dead, and only a _Recv runs all the same.",
    "no_fuse_server": "This process does not run the protocol grpc+fuse.",
    "not_cpu": "It leaves or enters a device that is not a CPU (GPUs: option do_fuse_gpu).",
    "not_stamped": "The session's master did not expect it; a loop's condition, as a rule.",
    "peer_unreachable": "The receiving task did not answer when it was asked for the plugin.",
    "peer_without_plugin": "The receiving task runs the protocol grpc, without the plugin.",
    "ref_race": "It brings the memory of a variable that the same run updates in no order with it.",
    "sender_not_visible": "What is above it is not visible here, and none shares its requests.",
    "split_off": "fuse_grouping gave it a call of its own.",
    "stamp_version": "The session's master has a version of tf_fuse that does not fit.",
    "type_not_serializable": "A frame cannot hold values of its type.",
    "unreachable_node": "The graph's source does not reach it.",
    "would_cycle": "Fusing it would make two tasks wait for one another.",
}
