// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Checks that all members of a collective put in the same shape and type.
// TensorFlow compares within a process only; between processes a chunk of the
// wrong size is an error and one of the right size and wrong type is added up.

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_COMPARE_OPERANDS_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_COMPARE_OPERANDS_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tf_fuse {

class Operands {
 public:
  // What a device of this task puts into a collective, until Retract(). Errors:
  // InvalidArgument, with both values, if a member that asked before differs.
  absl::Status Announce(const std::string& collective,
                        const std::string& operand, const std::string& device);
  void Retract(const std::string& collective, const std::string& device);

  // What `consumer` puts in, that asks `producer` of this task. Errors: as
  // Announce(). Compared later if the producer has not begun.
  absl::Status Compare(const std::string& collective,
                       const std::string& operand, const std::string& consumer,
                       const std::string& producer);

 private:
  struct Early {
    std::string operand;
    std::string consumer;
  };
  // By collective and device.
  using Key = std::pair<std::string, std::string>;

  absl::Mutex mu_;
  std::map<Key, std::string> announced_ ABSL_GUARDED_BY(mu_);
  std::map<Key, Early> early_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_COMPARE_OPERANDS_H_
