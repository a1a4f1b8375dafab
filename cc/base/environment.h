// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Numbers from environment variables.

#ifndef TF_FUSE_CC_BASE_ENVIRONMENT_H_
#define TF_FUSE_CC_BASE_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_fuse {

// The number in an environment variable, or `otherwise` if it is not set. Any
// value but a whole number from `least` to `most` is reported and ignored.
inline uint64_t NumberFromEnvironment(const char* variable, uint64_t least,
                                      uint64_t most, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  uint64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) {
    return number;
  }
  LOG(WARNING) << "tf_fuse: " << variable << " is '" << text
               << "', expected a number from " << least << " to " << most
               << "; " << otherwise << " is used.";
  return otherwise;
}

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_ENVIRONMENT_H_
