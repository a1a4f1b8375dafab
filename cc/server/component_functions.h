// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Runs the parts of other tasks' functions that are called by data channels.

#ifndef TF_FUSE_CC_SERVER_COMPONENT_FUNCTIONS_H_
#define TF_FUSE_CC_SERVER_COMPONENT_FUNCTIONS_H_

#include <string>

#include "channel/calls/call_handler.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tensorflow {
class GrpcServer;
namespace eager {
class EagerServiceImpl;
}
}  // namespace tensorflow

namespace tf_fuse {

class ComponentFunctions {
 public:
  ComponentFunctions() = default;
  // Of a server that has been initialized; `threads` are made of ServerThreads.
  ComponentFunctions(tensorflow::GrpcServer* server,
                     tensorflow::thread::ThreadPool* threads);

  // As gRPC's RunComponentFunction, on a thread for a coordinator's calls.
  // Errors: InvalidArgument for bytes that are not a request; Unavailable
  // without a server.
  void Run(const std::string& request, tensorflow::CallOptions* options,
           AnswerDone done) const;

 private:
  tensorflow::eager::EagerServiceImpl* service_ = nullptr;
  tensorflow::thread::ThreadPool* threads_ = nullptr;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_COMPONENT_FUNCTIONS_H_
