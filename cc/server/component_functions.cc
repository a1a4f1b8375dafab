// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "server/component_functions.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/server_threads.h"
#include "tensorflow/core/distributed_runtime/rpc/eager/grpc_eager_service_impl.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"

namespace tf_fuse {

// Private members that have no accessors. C++ ignores access in an explicit
// instantiation, where the friend functions are defined.
template <auto kService, auto kImplementation>
struct EagerServiceMembers {
  friend auto& ServiceOf(tensorflow::GrpcServer& server) {
    return server.*kService;
  }
  friend tensorflow::eager::EagerServiceImpl* ImplementationOf(
      tensorflow::eager::GrpcEagerServiceImpl& service) {
    return &(service.*kImplementation);
  }
};
auto& ServiceOf(tensorflow::GrpcServer& server);
tensorflow::eager::EagerServiceImpl* ImplementationOf(
    tensorflow::eager::GrpcEagerServiceImpl& service);
template struct EagerServiceMembers<
    &tensorflow::GrpcServer::eager_service_,
    &tensorflow::eager::GrpcEagerServiceImpl::local_impl_>;

ComponentFunctions::ComponentFunctions(tensorflow::GrpcServer* server,
                                       tensorflow::thread::ThreadPool* threads)
    : threads_(threads) {
  auto* const service =
      static_cast<tensorflow::eager::GrpcEagerServiceImpl*>(ServiceOf(*server));
  if (service != nullptr) service_ = ImplementationOf(*service);
}

void ComponentFunctions::Run(const std::string& bytes,
                             tensorflow::CallOptions* options,
                             AnswerDone done) const {
  using Request = tensorflow::eager::RunComponentFunctionRequest;
  using Response = tensorflow::eager::RunComponentFunctionResponse;
  if (service_ == nullptr) {
    return done(absl::UnavailableError("the task runs no functions"), {});
  }
  const auto request = std::make_shared<Request>();
  if (!request->ParseFromString(bytes)) {
    return done(absl::InvalidArgumentError(absl::StrCat(
                    "data channel: a RunComponentFunctionRequest of ",
                    bytes.size(), " bytes does not parse")),
                {});
  }
  const auto response = std::make_shared<Response>();
  auto answer = [request, response,
                 done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status, {});
    const auto bytes = std::make_shared<std::string>();
    if (!response->SerializeToString(bytes.get())) {
      return done(absl::InternalError(absl::StrCat(
                      "a RunComponentFunctionResponse of ",
                      response->ByteSizeLong(), " bytes cannot be sent")),
                  {});
    }
    done(status, {{*bytes}, bytes});
  };
  ScheduleEagerCall(threads_, [service = service_, request, response, options,
                               answer = std::move(answer)] {
    service->RunComponentFunction(options, request.get(), response.get(),
                                  answer);
  });
}

}  // namespace tf_fuse
