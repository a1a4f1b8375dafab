// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Transfers chunks over gRPC, as answers to RecvTensor: TensorFlow sends a
// tensor's memory without a copy, and reads what comes into memory of the
// caller's choice. (Its RecvBuf copies a chunk five times.)

#ifndef TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_GRPC_CHUNK_H_
#define TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_GRPC_CHUNK_H_

#include <memory>
#include <string>

#include "channel/chunk.h"
#include "channel/chunk_source.h"
#include "grpcpp/support/byte_buffer.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "transport/sender/request_budget.h"

namespace tf_fuse {

inline constexpr char kChunkRequestTypeUrl[] =
    "type.googleapis.com/tf_fuse.v1.GrpcChunkRequest";

// Takes a chunk of `task` into `destination`.
std::shared_ptr<ChunkCall> TakeByGrpc(const std::string& task,
                                      tensorflow::WorkerCacheInterface* workers,
                                      const ChunkKey& key, char* destination,
                                      ChunkDone done);

std::shared_ptr<ChunkCall> BorrowByGrpc(
    const std::string& task, tensorflow::WorkerCacheInterface* workers,
    const ChunkKey& key, LoanDone done);

// The producer's side. `ticket` is kept until the request is answered. Errors:
// InvalidArgument, and those of ChunkSource.
void ServeChunk(const std::shared_ptr<ChunkSource>& source,
                RequestBudget::Ticket ticket, tensorflow::CallOptions* options,
                const tensorflow::RecvTensorRequest& request,
                ::grpc::ByteBuffer* response, tensorflow::StatusCallback done);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_COLLECTIVES_REMOTE_ACCESS_GRPC_CHUNK_H_
