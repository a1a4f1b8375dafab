// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Declares the C functions that Python calls. The caller frees the strings and
// buffers that they return with tf_fuse_free().

#ifndef TF_FUSE_CC_C_API_H_
#define TF_FUSE_CC_C_API_H_

#include <stddef.h>

#define TF_FUSE_EXPORT __attribute__((visibility("default")))

extern "C" {

// The version of the package that this library was built for, as in
// pyproject.toml. The string lives as long as the library.
TF_FUSE_EXPORT const char* tf_fuse_version();

// Answers a tf_fuse.v1.Question about this process, which says what the *size
// bytes are. Null only when memory is exhausted.
TF_FUSE_EXPORT char* tf_fuse_answer(int question, size_t* size);

// The same of a task of the connected cluster ("/job:ps/replica:0/task:0"),
// waiting `timeout_ms` at most. If *code, an absl::StatusCode, is not 0, the
// bytes are the error's text; FailedPrecondition if this process has no server
// in a cluster to ask with.
TF_FUSE_EXPORT char* tf_fuse_ask(const char* task, int question, int timeout_ms,
                                 size_t* size, int* code);

// Partitions a placed graph and runs the fuse_recv pass on it, without a
// cluster. `request` is a serialized tf_fuse.v1.RewriteRequest; the result, of
// *result_size bytes, a serialized tf_fuse.v1.RewriteResponse (which carries
// errors too). Null only when memory is exhausted.
TF_FUSE_EXPORT char* tf_fuse_rewrite(const char* request, size_t request_size,
                                     size_t* result_size);

// Whether TfFuse>ElementwiseUpdate has TensorFlow's operation `op` that makes
// elements of the type `result` of elements of the type `operand`
// (tensorflow.DataType).
TF_FUSE_EXPORT bool tf_fuse_has_block_op(const char* op, int operand,
                                         int result);

// Of base/sigterm.h: what Python needs to hand over before a SIGTERM ends the
// process.
TF_FUSE_EXPORT void tf_fuse_catch_sigterm();
TF_FUSE_EXPORT void tf_fuse_release_sigterm();
TF_FUSE_EXPORT bool tf_fuse_wait_for_sigterm(double seconds);
TF_FUSE_EXPORT void tf_fuse_end_by_sigterm();

TF_FUSE_EXPORT void tf_fuse_free(char* memory);

}  // extern "C"

#endif  // TF_FUSE_CC_C_API_H_
