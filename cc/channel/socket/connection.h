// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives messages on a data channel: a stream socket between two
// processes, on which each message may be followed by bytes. On the wire:
//
//   uint32 magic   uint32 bytes of the message   uint64 bytes after it
//   ChannelMessage (proto/tf_fuse/v1/collectives.proto)   those bytes
//
// in little-endian order. Bytes go from the memory of the one side to that of
// the other without a copy of ours.

#ifndef TF_FUSE_CC_CHANNEL_SOCKET_CONNECTION_H_
#define TF_FUSE_CC_CHANNEL_SOCKET_CONNECTION_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "channel/socket/event_loop.h"
#include "tf_fuse/v1/collectives.pb.h"

namespace tf_fuse {

inline constexpr uint32_t kChannelMagic = 0x31434654;  // "TFC1"
inline constexpr size_t kChannelHeaderBytes = 16;

// Of a socket that a system call has found broken.
absl::Status LostChannel(const char* call, int error);

// A status code that a peer has sent, which may be any number but that of OK.
absl::StatusCode CodeOfPeer(int code);

class Connection : public EventLoop::Handler,
                   public std::enable_shared_from_this<Connection> {
 public:
  // What to do with what comes; called on the loop's thread, in order.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // Where the bytes after `message` go; they are read while that memory's
    // owner holds off through Connection::Divert(). Null: they are dropped. An
    // error closes the connection.
    virtual absl::StatusOr<char*> DestinationOf(
        const v1::ChannelMessage& message, uint64_t bytes) = 0;
    // A message and the bytes after it have come; `fd` is a descriptor that
    // came with it, or -1; the receiver takes it. An error closes the
    // connection.
    virtual absl::Status OnMessage(const v1::ChannelMessage& message,
                                   uint64_t bytes, int fd) = 0;
    // The last call, once. Nothing was delivered after the message before.
    virtual void OnClosed(const absl::Status& status) = 0;
  };

  // Takes `fd`, a connected stream socket.
  static std::shared_ptr<Connection> Create(int fd);
  ~Connection() override;

  // Begins to read. `receiver` lives until OnClosed().
  absl::Status Start(std::shared_ptr<Receiver> receiver);

  // Sends a message, then the bytes of `pieces`, which stay as they are until
  // `sent` is called: with OK when they are written, or with the error that
  // closed the connection. `sent` may be called before this returns, and is
  // short. `fd`, if it is not -1, goes along; the caller keeps it open until
  // `sent`.
  void Send(const v1::ChannelMessage& message,
            std::vector<absl::string_view> pieces = {},
            std::function<void(const absl::Status&)> sent = nullptr,
            int fd = -1);

  // Lets what is being read no longer go to memory that begins in
  // [begin, begin + size): when this returns nothing is written there.
  void Divert(const char* begin, uint64_t size);

  // Closes it; OnClosed() follows on the loop's thread.
  void Close(const absl::Status& status);

  bool is_unix() const { return is_unix_; }
  // User of the process at the other end of a Unix socket; -1 if unknown.
  int64_t PeerUser() const;

  void OnReadable() override;
  void OnWritable() override;

 private:
  struct Outgoing {
    // The parts that are to be written; returns how many, a few at most.
    size_t Unwritten(iovec* parts) const;
    void Wrote(uint64_t bytes);

    std::string head;
    std::vector<absl::string_view> pieces;
    uint64_t left = 0;  // Bytes of all that are not written.
    size_t next = 0;    // The part that is being written: the head is part 0.
    uint64_t done = 0;  // Bytes of that part.
    bool has_begun = false;
    int fd = -1;
    std::function<void(const absl::Status&)> sent;
  };
  struct Incoming {
    std::string head;     // Of fixed size, then the message.
    uint64_t wanted = 0;  // Bytes of `head`.
    bool has_header = false;
    bool in_bytes = false;
    uint64_t bytes = 0;
    uint64_t done = 0;
    char* destination = nullptr;
    v1::ChannelMessage message;
    int fd = -1;
  };

  Connection(int fd, bool is_unix) : fd_(fd), is_unix_(is_unix) {}

  // Writes what can be written now. Fills `finished` with what is to be called
  // without the lock.
  absl::Status Write(std::deque<Outgoing>* finished)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(out_mu_);
  static void Finish(std::deque<Outgoing>* finished,
                     const absl::Status& status);
  // Reads once; false if nothing is there now.
  absl::StatusOr<bool> Read();
  absl::StatusOr<bool> ReadHead();
  absl::StatusOr<bool> ReadBytes();
  absl::StatusOr<int64_t> Receive(void* data, size_t size);
  // The same of a head, with a descriptor that may come with it.
  absl::StatusOr<int64_t> ReceiveHead(void* data, size_t size);
  absl::StatusOr<int64_t> Received(ssize_t read, int error) const;
  absl::Status HeadIsComplete();
  absl::Status Deliver();
  void Shut(const absl::Status& status);

  const int fd_;
  const bool is_unix_;
  std::shared_ptr<Receiver> receiver_;  // The loop's thread only, after Start.

  absl::Mutex out_mu_;
  std::deque<Outgoing> out_ ABSL_GUARDED_BY(out_mu_);
  uint64_t out_head_bytes_ ABSL_GUARDED_BY(out_mu_) = 0;  // In `out_`.
  absl::Status closed_ ABSL_GUARDED_BY(out_mu_);
  bool watches_writable_ ABSL_GUARDED_BY(out_mu_) = false;

  // The lock keeps Divert() and a read of bytes apart; else the loop's only.
  absl::Mutex in_mu_;
  Incoming in_;
  std::string dropped_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_CHANNEL_SOCKET_CONNECTION_H_
