// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Sessions with a target such as "grpc+fuse://host:2222", which cluster
// resolvers with the rpc_layer "grpc+fuse" give as the master. Clients talk to
// a master as those of "grpc://" do, so TensorFlow's sessions do the work.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/session_factory.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_fuse {

namespace {

using tensorflow::SessionFactory;
using tensorflow::SessionOptions;

constexpr char kScheme[] = "grpc+fuse://";
constexpr char kStockScheme[] = "grpc://";

class FuseSessionFactory : public SessionFactory {
 public:
  bool AcceptsOptions(const SessionOptions& options) override {
    return absl::StartsWith(options.target, kScheme);
  }

  absl::Status NewSession(const SessionOptions& options,
                          tensorflow::Session** out_session) override {
    const SessionOptions stock = WithStockScheme(options);
    SessionFactory* factory = nullptr;
    const absl::Status status = GetFactory(stock, &factory);
    return status.ok() ? factory->NewSession(stock, out_session) : status;
  }

  absl::Status Reset(const SessionOptions& options,
                     const std::vector<std::string>& containers) override {
    const SessionOptions stock = WithStockScheme(options);
    SessionFactory* factory = nullptr;
    const absl::Status status = GetFactory(stock, &factory);
    return status.ok() ? factory->Reset(stock, containers) : status;
  }

 private:
  static SessionOptions WithStockScheme(SessionOptions options) {
    options.target =
        absl::StrCat(kStockScheme, options.target.substr(sizeof(kScheme) - 1));
    return options;
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  SessionFactory::Register("TF_FUSE_GRPC_SESSION", new FuseSessionFactory);
  return true;
}();

}  // namespace

}  // namespace tf_fuse
