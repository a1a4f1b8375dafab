// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The options that reach every process inside the ConfigProto.

#ifndef TF_FUSE_CC_PASSES_FUSE_OPTIONS_H_
#define TF_FUSE_CC_PASSES_FUSE_OPTIONS_H_

#include <string>

#include "tensorflow/core/protobuf/config.pb.h"

namespace tf_fuse {

// The name of the custom graph optimizer whose parameter_map carries our
// options. tf_fuse/options.py writes it.
inline constexpr char kOptimizerName[] = "tf_fuse";

struct FuseOptions {
  bool do_fuse_recv = false;
  // The others are without effect unless do_fuse_recv is on.
  bool do_fuse_gpu = false;
  bool do_pack_sends = false;
  // fuse_grouping: "level", "consumer", "cost" or "dynamic"; empty: not given.
  std::string grouping;
  // Of "cost"; 0: measured, or the default.
  double rpc_us = 0;
  double gigabytes_per_s = 0;
};

// All off unless `config` says otherwise. Keys that this version does not know
// are ignored: a newer coordinator may send them.
FuseOptions ParseFuseOptions(const tensorflow::ConfigProto& config);

// Whether this task is to fuse graphs that come without options and without
// stamps, as from the master of a session that has no tf_fuse: dynamically. The
// environment variable TF_FUSE_DYNAMIC says so; it is read once.
bool FusesUnstampedGraphs();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_FUSE_OPTIONS_H_
