// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "c_api.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/sigterm.h"
#include "passes/offline_rewrite.h"
#include "tf_fuse/v1/fuse_recv.pb.h"
#include "transport/peers/introspection.h"
#include "update/block_ops.h"

namespace {

char* CopyOut(const std::string& text) {
  char* memory = static_cast<char*>(std::malloc(text.size() + 1));
  if (memory == nullptr) return nullptr;
  std::memcpy(memory, text.data(), text.size());
  memory[text.size()] = '\0';
  return memory;
}

}  // namespace

char* tf_fuse_answer(int question, size_t* size) {
  const std::string answer =
      tf_fuse::AnswerQuestion(static_cast<tf_fuse::v1::Question>(question));
  *size = answer.size();
  return CopyOut(answer);
}

char* tf_fuse_ask(const char* task, int question, int timeout_ms, size_t* size,
                  int* code) {
  const absl::StatusOr<std::string> answer = tf_fuse::AskTask(
      task, static_cast<tf_fuse::v1::Question>(question), timeout_ms);
  *code = static_cast<int>(answer.status().code());
  const std::string bytes =
      answer.ok() ? *answer : std::string(answer.status().message());
  *size = bytes.size();
  return CopyOut(bytes);
}

char* tf_fuse_rewrite(const char* request, size_t request_size,
                      size_t* result_size) {
  const std::string result =
      tf_fuse::RewriteOffline(std::string(request, request_size));
  *result_size = result.size();
  return CopyOut(result);
}

bool tf_fuse_has_block_op(const char* op, int operand, int result) {
  return tf_fuse::FindBlockOp(op, static_cast<tensorflow::DataType>(operand),
                              static_cast<tensorflow::DataType>(result))
             .function != nullptr;
}

void tf_fuse_catch_sigterm() { tf_fuse::CatchSigterm(); }

void tf_fuse_release_sigterm() { tf_fuse::ReleaseSigterm(); }

bool tf_fuse_wait_for_sigterm(double seconds) {
  return tf_fuse::WaitForSigterm(seconds);
}

void tf_fuse_end_by_sigterm() { tf_fuse::EndBySigterm(); }

void tf_fuse_free(char* memory) { std::free(memory); }
