// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/cluster_functions.h"

#include <cstddef>

#include "tensorflow/core/common_runtime/eager/context.h"
#include "tensorflow/core/distributed_runtime/eager/cluster_function_library_runtime.h"

namespace tf_fuse {

namespace {

using tensorflow::EagerContext;
using tensorflow::eager::EagerClusterFunctionLibraryRuntime;

// 80 MiB of addresses; a thousand workers with a hundred functions on three
// tasks each have fewer.
constexpr size_t kFunctions = size_t{1} << 20;

// Private members that have no accessors. C++ ignores access in an explicit
// instantiation, where the friend functions are defined.
template <auto kRuntime, auto kMutex, auto kFunctions>
struct Members {
  friend auto& Runtime(EagerContext& context) { return context.*kRuntime; }
  friend auto& Mutex(EagerClusterFunctionLibraryRuntime& runtime) {
    return runtime.*kMutex;
  }
  friend auto& Functions(EagerClusterFunctionLibraryRuntime& runtime) {
    return runtime.*kFunctions;
  }
};
auto& Runtime(EagerContext& context);
auto& Mutex(EagerClusterFunctionLibraryRuntime& runtime);
auto& Functions(EagerClusterFunctionLibraryRuntime& runtime);
template struct Members<&EagerContext::cluster_flr_,
                        &EagerClusterFunctionLibraryRuntime::mu_,
                        &EagerClusterFunctionLibraryRuntime::function_data_>;

}  // namespace

void ReserveClusterFunctions(EagerContext* context) {
  auto* runtime = dynamic_cast<EagerClusterFunctionLibraryRuntime*>(
      Runtime(*context).Get());
  if (runtime == nullptr) return;
  tensorflow::mutex_lock lock(Mutex(*runtime));
  auto& functions = Functions(*runtime);
  functions.reserve(kFunctions);
  VLOG(1) << "functions have room for " << functions.capacity()
          << " parts on other tasks";
}

}  // namespace tf_fuse
