// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Reads the options that reach every process inside the ConfigProto, and turns
// them into options of the analysis.

#ifndef TF_FUSE_CC_PASSES_FUSE_RECV_OPTIONS_H_
#define TF_FUSE_CC_PASSES_FUSE_RECV_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/limits.h"
#include "passes/estimate/cost_model.h"
#include "passes/fuse_recv/plan.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tf_fuse {

// The name of the custom graph optimizer whose parameter_map carries our
// options. tf_fuse/options/ writes it.
inline constexpr char kOptimizerName[] = "tf_fuse";

struct FuseOptions {
  bool fuse_lookups_combine = false;
  bool fuse_lookups_unique = false;
  bool do_fuse_recv = false;
  // The others are without effect unless do_fuse_recv is on.
  bool do_fuse_gpu = false;
  bool fuse_operations = true;
  // fuse_grouping: "level", "consumer", "cost" or "dynamic"; empty: not given.
  std::string grouping;
  // Of "cost"; 0: the default.
  double rpc_us = 0;
  double gigabytes_per_s = 0;
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

struct AnalysisOptions {
  Grouping grouping = Grouping::kDepth;
  Splitting splitting = Splitting::kLevel;
  // Of kCost. Tensors above max_packed_bytes do not travel in frames anyway.
  CostModel cost_model;
  double max_packed_bytes = 1 << 20;
  // Task ("/job:ps/replica:0/task:0") to host. A task that is not there has a
  // host of its own.
  std::map<std::string, std::string> hosts;
  bool ShareHost(const std::string& task, const std::string& other) const;
  // Whether receives that may be dead are fused too.
  bool fuse_may_be_dead = true;
  // Whether receives from and to GPUs are fused too.
  bool fuse_gpu = false;
  // Whether small operations that wait for the same tensors run as one.
  bool fuse_operations = false;
  // A sender refuses a request with more keys, or with a longer one.
  uint64_t max_keys_per_request = MaxKeysPerRequest();
  uint64_t max_key_bytes = kMaxKeyBytes;
  // Returns the reason why `task` cannot run a _FuseRecv, or an empty string.
  // Called at most once per task.
  std::function<std::string(const std::string& task)> task_blocker;
};

// All off unless `config` says otherwise. Keys that this version does not know
// are ignored: a newer coordinator may send them.
FuseOptions ParseFuseOptions(const tensorflow::ConfigProto& config);

// What the options say, and where they say nothing, what is usual.
AnalysisOptions ChooseAnalysis(const FuseOptions& options);

// Whether this task is to fuse graphs that come without options and without
// stamps, as from the master of a session that has no tf_fuse: dynamically. The
// environment variable TF_FUSE_DYNAMIC says so; it is read once.
bool FusesUnstampedGraphs();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_RECV_OPTIONS_H_
