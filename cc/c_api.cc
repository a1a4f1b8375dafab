// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "c_api.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "passes/offline_rewrite.h"
#include "transport/metrics.h"

namespace {

char* CopyOut(const std::string& text) {
  char* memory = static_cast<char*>(std::malloc(text.size() + 1));
  if (memory == nullptr) return nullptr;
  std::memcpy(memory, text.data(), text.size());
  memory[text.size()] = '\0';
  return memory;
}

}  // namespace

const char* tf_fuse_version() { return TF_FUSE_VERSION; }

char* tf_fuse_metrics_json() {
  return CopyOut(tf_fuse::Metrics::Get()->ToJson());
}

char* tf_fuse_rewrite(const char* request, size_t request_size,
                      size_t* result_size) {
  const std::string result =
      tf_fuse::RewriteOffline(std::string(request, request_size));
  *result_size = result.size();
  return CopyOut(result);
}

void tf_fuse_free(char* memory) { std::free(memory); }
