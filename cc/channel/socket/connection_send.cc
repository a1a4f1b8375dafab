// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Connection: what it sends.

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/base/internal/endian.h"
#include "absl/strings/str_cat.h"
#include "channel/socket/connection.h"

namespace tf_fuse {

namespace {

// Parts of a message that are written at once.
constexpr size_t kPartsAtOnce = 16;
constexpr uint64_t kMaxWrittenAtOnce = 4 << 20;
// Messages that wait to be read by the other side. Far more than requests and
// answers of any collective; one that asks and does not read has no end.
constexpr uint64_t kMaxUnreadBytes = 64 << 20;

std::string HeadOf(const v1::ChannelMessage& message, uint64_t bytes) {
  std::string head(kChannelHeaderBytes, '\0');
  message.AppendToString(&head);
  absl::little_endian::Store32(&head[0], kChannelMagic);
  absl::little_endian::Store32(&head[4], head.size() - kChannelHeaderBytes);
  absl::little_endian::Store64(&head[8], bytes);
  return head;
}

}  // namespace

void Connection::Send(const v1::ChannelMessage& message,
                      std::vector<absl::string_view> pieces,
                      std::function<void(const absl::Status&)> sent, int fd) {
  uint64_t bytes = 0;
  for (const absl::string_view piece : pieces) bytes += piece.size();
  std::deque<Outgoing> finished;
  absl::Status status;
  {
    absl::MutexLock lock(&out_mu_);
    status = closed_;
    if (status.ok() && out_head_bytes_ > kMaxUnreadBytes) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "data channel: the other task does not read; ", out_head_bytes_,
          " bytes of messages wait, the limit is ", kMaxUnreadBytes));
    }
    if (status.ok()) {
      Outgoing one;
      one.head = HeadOf(message, bytes);
      out_head_bytes_ += one.head.size();
      one.pieces = std::move(pieces);
      one.left = one.head.size() + bytes;
      one.fd = fd;
      one.sent = std::exchange(sent, nullptr);
      out_.push_back(std::move(one));
      if (out_.size() == 1) status = Write(&finished);
    }
  }
  if (!status.ok() && sent != nullptr) sent(status);
  Finish(&finished, absl::OkStatus());
  if (!status.ok()) Close(status);
}

absl::Status Connection::Write(std::deque<Outgoing>* finished) {
  uint64_t written_bytes = 0;
  while (!out_.empty()) {
    Outgoing& one = out_.front();
    iovec parts[kPartsAtOnce];
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = one.Unwritten(parts);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (one.fd >= 0 && !one.has_begun) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &one.fd, sizeof(int));
    }
    // What is much waits in between: the thread that reads needs the lock.
    const bool is_much = written_bytes > kMaxWrittenAtOnce;
    const ssize_t written = is_much ? -1 : sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (written < 0) {
      if (!is_much && errno == EINTR) continue;
      if (!is_much && errno != EAGAIN && errno != EWOULDBLOCK) {
        return LostChannel("sendmsg", errno);
      }
      if (!watches_writable_) {
        watches_writable_ = true;
        EventLoop::For(fd_)->WatchWritable(fd_, true);
      }
      return absl::OkStatus();
    }
    written_bytes += written;
    one.Wrote(written);
    if (one.left > 0) continue;
    out_head_bytes_ -= one.head.size();
    finished->push_back(std::move(one));
    out_.pop_front();
  }
  if (watches_writable_) {
    watches_writable_ = false;
    EventLoop::For(fd_)->WatchWritable(fd_, false);
  }
  return absl::OkStatus();
}

size_t Connection::Outgoing::Unwritten(iovec* parts) const {
  size_t count = 0;
  for (size_t i = next; i <= pieces.size() && count < kPartsAtOnce; ++i) {
    absl::string_view part = i == 0 ? absl::string_view(head) : pieces[i - 1];
    if (i == next) part.remove_prefix(done);
    parts[count++] = {const_cast<char*>(part.data()), part.size()};
  }
  return count;
}

void Connection::Outgoing::Wrote(uint64_t bytes) {
  has_begun = true;
  left -= bytes;
  done += bytes;
  while (next <= pieces.size()) {
    const size_t size = next == 0 ? head.size() : pieces[next - 1].size();
    if (done < size) return;
    done -= size;
    ++next;
  }
}

void Connection::Finish(std::deque<Outgoing>* finished,
                        const absl::Status& status) {
  for (Outgoing& one : *finished) {
    if (one.sent != nullptr) one.sent(status);
  }
}

void Connection::OnWritable() {
  std::deque<Outgoing> finished;
  absl::Status status;
  {
    absl::MutexLock lock(&out_mu_);
    if (closed_.ok()) status = Write(&finished);
  }
  Finish(&finished, absl::OkStatus());
  if (!status.ok()) Close(status);
}

}  // namespace tf_fuse
