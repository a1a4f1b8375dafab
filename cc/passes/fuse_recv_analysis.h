// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Decides which receives are fused. Pure: looks at the graph, changes nothing.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_ANALYSIS_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_ANALYSIS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "passes/cost_model.h"
#include "passes/hosts.h"
#include "passes/partition_view.h"
#include "passes/timeline.h"
#include "transport/limits.h"

namespace tf_fuse {

// Why a receive is left alone. The texts are part of the metrics and of
// `explain`; docs/fuse_recv.md describes each.
namespace skip {
inline constexpr char kMayBeDead[] = "may_be_dead";
inline constexpr char kLoopFrame[] = "loop_frame";
inline constexpr char kClientTerminated[] = "client_terminated";
inline constexpr char kNotCpu[] = "not_cpu";
inline constexpr char kHostMemory[] = "host_memory";
inline constexpr char kType[] = "type_not_serializable";
inline constexpr char kKeyTooLong[] = "key_too_long";
inline constexpr char kAlone[] = "alone";
inline constexpr char kLarge[] = "large";
inline constexpr char kSplitOff[] = "split_off";
inline constexpr char kWouldCycle[] = "would_cycle";
inline constexpr char kSenderNotVisible[] = "sender_not_visible";
inline constexpr char kCyclicGraph[] = "cyclic_graph";
inline constexpr char kUnreachableNode[] = "unreachable_node";
inline constexpr char kPeerPlain[] = "peer_without_plugin";
inline constexpr char kPeerUnreachable[] = "peer_unreachable";
inline constexpr char kNoFuseServer[] = "no_fuse_server";
inline constexpr char kRefRace[] = "ref_race";
// Of sessions.
inline constexpr char kNotStamped[] = "not_stamped";
inline constexpr char kStampVersion[] = "stamp_version";
}  // namespace skip

struct SkippedReceive {
  const Receive* receive = nullptr;
  std::string reason;
};

// Which frames a task reads.
struct ReadableFrames {
  uint32_t version = 0;    // The newest.
  uint64_t max_bytes = 0;  // Of their payloads.
};

// Receives that become one _FuseRecv, in the order of its outputs; or, if
// `dynamic`, one _FuseRecv each.
struct FuseGroup {
  std::string send_device;
  std::string recv_device;
  int depth = 0;
  std::string frame;  // Of the loop that they lie in; empty for the outermost.
  bool on_host = false;  // As Receive::on_host.
  std::vector<const Receive*> receives;
  std::vector<bool> may_be_dead;  // Of each receive.
  // Each receive becomes an operation of its own; those that wait at the same
  // time share requests. They have no common depth.
  bool dynamic = false;
  // Whether the sender's graph packs the tensors; if it does not, why, unless
  // that is switched off. Set by MarkGroupsToPack().
  bool packed_by_sender = false;
  std::string unpacked_reason;
  // What the receiver reads, if they are packed.
  ReadableFrames readable;
};

struct FusePlan {
  std::vector<FuseGroup> groups;
  std::vector<SkippedReceive> skipped;
  int local_receives = 0;
  // Of all receives, by node. Only kCost estimates them.
  std::map<NodeId, ReceiveEstimate> estimates;
  // TensorFlow keeps the kernels of a session by the names of their nodes, so
  // what is made must have a name that no other graph of the session has.
  bool in_session = false;
};

// How receives of the same two devices are split into groups. The other two
// are there to test the verifier: kAll ignores depth, and so asks for cycles;
// kAnyFrame ignores the loops that receives lie in, and what starts them.
enum class Grouping { kDepth, kAll, kAnyFrame };

// How the receives of a group, which may be one call, are divided into calls.
enum class Splitting {
  kLevel,     // Not at all.
  kConsumer,  // By the first node that uses them.
  kCost,      // Where waiting costs more than a call.
  kDynamic,   // When the step runs, whatever the depth.
};

// Of the name that the option fuse_grouping gives; false if there is none.
bool ParseSplitting(const std::string& name, Splitting* splitting);

// What starts a receive in each iteration of its loop: its control inputs,
// sorted. Empty outside of loops, where every node runs once.
std::vector<NodeId> FindTriggers(const PartitionView& view,
                                 const Receive& receive);

struct AnalysisOptions {
  Grouping grouping = Grouping::kDepth;
  Splitting splitting = Splitting::kLevel;
  // Of kCost. Tensors above max_packed_bytes do not travel in frames anyway.
  CostModel cost_model;
  double max_packed_bytes = 1 << 20;
  Hosts hosts;
  // Whether receives that may be dead are fused too.
  bool fuse_may_be_dead = true;
  // Whether receives from and to GPUs are fused too.
  bool fuse_gpu = false;
  // A sender refuses a request with more keys, or with a longer one.
  uint64_t max_keys_per_request = MaxKeysPerRequest();
  uint64_t max_key_bytes = MaxKeyBytes();
  // Returns the reason why `task` cannot run a _FuseRecv, or an empty string.
  // Called at most once per task.
  std::function<std::string(const std::string& task)> task_blocker;
  // Whether groups are packed by the sender's graph where that is possible.
  bool pack_sends = false;
  // Also where something waits for a _Send, which asks for cycles: it is there
  // to test the verifier.
  bool pack_awaited_sends = false;
  // Returns the reason why a _FuseSend on `send_task` cannot serve a _FuseRecv
  // on `recv_task`, or an empty string.
  std::function<std::string(const std::string& send_task,
                            const std::string& recv_task)>
      pack_blocker;
  std::function<ReadableFrames(const std::string& task)> readable_frames;
};

class Liveness;

// The reason to leave a receive alone that lies in the receive itself, or "".
std::string FindBlocker(const PartitionView& view, const Liveness& liveness,
                        const Receive& receive, const AnalysisOptions& options);

// Whether the sender would refuse the rendezvous key of this receive.
bool IsKeyTooLong(const Receive& receive, const AnalysisOptions& options);

// Divides `items` into as few parts of at most `most` as there can be, about
// equally large.
template <typename T>
std::vector<std::vector<T>> SplitEvenly(const std::vector<T>& items,
                                        size_t most) {
  std::vector<std::vector<T>> parts;
  const size_t count = (items.size() + most - 1) / most;
  for (size_t i = 0; i < count; ++i) {
    parts.emplace_back(items.begin() + i * items.size() / count,
                       items.begin() + (i + 1) * items.size() / count);
  }
  return parts;
}

// The plan refers to receives of `view`, which must outlive it. A receive is
// fused with others of the same send device, receive device, depth, blocking
// ancestors and loop.
//
// The depth of a receive is 1 + the largest depth among the receives above
// its sender. Two receives of equal depth cannot wait for one another, and
// contracting all groups at once leaves the graph acyclic, because depth
// grows along every path through a receive.
//
// Blocking ancestors are operations that may wait for something that is no
// edge of the graph, such as another step (QueueDequeue). Receives that do
// not hang on the same ones are kept apart: one must not wait for what only
// another waits for. The Merge of a loop stands for what it waits for in
// iterations before. Nor do they come to wait for other feeds than before: see
// feed_classes.h.
//
// Receives in a loop are fused with those that the same operations start in
// each iteration; TensorFlow's partitioner starts all receives of a loop on
// one device by one Merge. So the fused one runs in the iterations in which
// they would run, and waits for tensors of its own iteration alone. What an
// iteration waits for beside its own is earlier ones: no two iterations wait
// for each other (docs/architecture.md).
//
// A receive that is alone at its depth joins a deeper group of the same devices
// if whatever uses it waits for a receive of that depth anyway, and for what
// the group hangs on: nothing is held up. Depths stay in order by this, since
// every receive below its consumers is deeper still.
//
// Where a sender above a receive is not visible, neither is its depth. Such
// receives of the same two devices, and frame of a loop, are fused dynamically:
// none of them waits for another, so depth and blocking ancestors do not
// matter. Whether they are live is not known either.
FusePlan PlanFusedReceives(const PartitionView& view,
                           const AnalysisOptions& options);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_ANALYSIS_H_
