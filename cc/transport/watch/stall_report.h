// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What is logged of a fused receive that waits for long.

#ifndef TF_FUSE_CC_TRANSPORT_WATCH_STALL_REPORT_H_
#define TF_FUSE_CC_TRANSPORT_WATCH_STALL_REPORT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tf_fuse/v1/fuse_recv.pb.h"

namespace tf_fuse {

// "/job:ps/replica:0/task:0" of "/job:ps/replica:0/task:0/device:CPU:0"; any
// other text is returned unchanged.
std::string TaskOfDevice(absl::string_view device);

// A device of this task: to receive answers to questions of ours with.
tensorflow::Device* HostDevice(const tensorflow::WorkerEnv* env);

// Fills in which tensors are missing; `names` are all of the receive's.
template <typename NameFn>
void SetMissing(const std::vector<size_t>& indices, NameFn name,
                v1::WaitingReceive* out) {
  constexpr int kMaxNames = 100;
  out->set_missing_known(true);
  out->set_missing(static_cast<uint32_t>(indices.size()));
  out->clear_tensor_names();
  for (const size_t index : indices) {
    if (out->tensor_names_size() == kMaxNames) break;
    out->add_tensor_names(name(index));
  }
}

// False if enough was logged in this minute. A cluster that hangs has thousands
// of receives that wait, and the first ones say why.
bool AdmitStallReport();

// Logs one warning. `why` is what is known of the reason; empty for the usual
// one.
void LogStall(const v1::WaitingReceive& waiting, absl::string_view why = "");

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_WATCH_STALL_REPORT_H_
