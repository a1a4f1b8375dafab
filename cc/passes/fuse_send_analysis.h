// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which groups of receives are packed by an op in the sender's graph
// (_FuseSend) instead of by the sender's request handler. Pure.

#ifndef TF_FUSE_CC_PASSES_FUSE_SEND_ANALYSIS_H_
#define TF_FUSE_CC_PASSES_FUSE_SEND_ANALYSIS_H_

#include <cstddef>

#include "passes/fuse_recv_analysis.h"
#include "passes/partition_view.h"

namespace tf_fuse {

// Why a group is packed by the handler although do_pack_sends is on. Part of
// reports and of `explain`; docs/fuse_recv.md describes each.
namespace unpacked {
inline constexpr char kDynamic[] = "dynamic";
inline constexpr char kSession[] = "session";
inline constexpr char kNotCpu[] = "not_cpu";
inline constexpr char kKeyTooLong[] = "key_too_long";
inline constexpr char kMayBeDead[] = "may_be_dead";
inline constexpr char kLoopFrame[] = "loop_frame";
inline constexpr char kSenderNotVisible[] = "sender_not_visible";
inline constexpr char kUnusualSend[] = "unusual_send";
inline constexpr char kSenderPlain[] = "sender_without_plugin";
inline constexpr char kSenderUnreachable[] = "sender_unreachable";
inline constexpr char kSenderOlder[] = "sender_of_older_version";
inline constexpr char kReceiverOlder[] = "receiver_of_older_version";
inline constexpr char kWouldCycle[] = "would_cycle";
}  // namespace unpacked

// A frame is named after its first tensor, behind this; with a number behind it
// of at most so many characters.
inline constexpr char kFramePrefix[] = "tf_fuse/";
inline constexpr size_t kMaxFrameSuffixBytes = 12;

// Sets packed_by_sender or unpacked_reason of each group. A group is packed if
//   - every slot is live in every step: an op with a dead input does not run,
//     and the receiver would wait for ever;
//   - every sender is visible and a plain _Send in one partition, outside of
//     loops, from which no edge leaves: then the op that waits for all of them
//     holds up nothing but the receive, which waits for all of them anyway;
//   - it is of a function and static: a worker of a session does not see the
//     _Send, and receives that are fused dynamically choose their frames when
//     they run;
//   - both devices are CPUs, in whose memory frames are packed;
//   - the sender would take the key of the frame;
//   - the tasks can run the ops (AnalysisOptions::pack_blocker).
void MarkGroupsToPack(const PartitionView& view, const AnalysisOptions& options,
                      FusePlan* plan);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_SEND_ANALYSIS_H_
