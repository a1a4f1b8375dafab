// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Writes the traced receives into the profile (docs/watching.md has its form).

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "transport/watch/recv_trace.h"
#include "transport/watch/stall_report.h"
#include "tsl/profiler/lib/profiler_factory.h"
#include "tsl/profiler/lib/profiler_interface.h"
#include "tsl/profiler/protobuf/profiler_options.pb.h"
#include "tsl/profiler/protobuf/xplane.pb.h"

namespace tf_fuse {

namespace {

using tensorflow::profiler::XEvent;
using tensorflow::profiler::XEventMetadata;
using tensorflow::profiler::XLine;
using tensorflow::profiler::XPlane;
using tensorflow::profiler::XSpace;
using tensorflow::profiler::XStat;

// TensorFlow's viewers show planes with this prefix.
constexpr char kPlaneName[] = "/device:CUSTOM:tf_fuse";

std::vector<std::string> TensorNames(const TracedRecv& event) {
  if (event.received != nullptr) return event.received->tensor_names;
  std::vector<std::string> names;
  for (const auto& key : event.served->keys) names.emplace_back(key.edge_name);
  return names;
}

std::string Peer(const TracedRecv& event) {
  return event.received != nullptr
             ? event.received->send_task
             : TaskOfDevice(event.served->source.dst_device);
}

// Gives names their numbers.
class PlaneWriter {
 public:
  explicit PlaneWriter(XPlane* plane) : plane_(plane) {
    plane->set_name(kPlaneName);
  }

  template <typename T>  // XEvent, XEventMetadata or XPlane.
  void AddText(const std::string& name, std::string value, T* to) {
    Add(name, to)->set_str_value(std::move(value));
  }
  template <typename T>
  void AddNumber(const std::string& name, int64_t value, T* to) {
    Add(name, to)->set_int64_value(value);
  }

  // What all events of one fused receive have in common. `keys` identifies it.
  int64_t Metadata(const TracedRecv& event) {
    const void* keys = event.received != nullptr
                           ? static_cast<const void*>(event.received.get())
                           : event.served.get();
    const auto [it, is_new] =
        metadata_.try_emplace(keys, static_cast<int64_t>(metadata_.size()) + 1);
    if (is_new) {
      const std::vector<std::string> names = TensorNames(event);
      XEventMetadata& metadata =
          (*plane_->mutable_event_metadata())[it->second];
      metadata.set_id(it->second);
      metadata.set_name(absl::StrCat(
          event.received != nullptr ? "fused receive of " : "serve ",
          names.size(), " tensors"));
      AddText("tensor_names", absl::StrJoin(names, ","), &metadata);
    }
    return it->second;
  }

 private:
  template <typename T>
  XStat* Add(const std::string& name, T* to) {
    const auto [it, is_new] =
        stats_.try_emplace(name, static_cast<int64_t>(stats_.size()) + 1);
    if (is_new) {
      auto& metadata = (*plane_->mutable_stat_metadata())[it->second];
      metadata.set_id(it->second);
      metadata.set_name(name);
    }
    XStat* stat = to->add_stats();
    stat->set_metadata_id(it->second);
    return stat;
  }

  XPlane* const plane_;
  std::map<const void*, int64_t> metadata_;
  std::map<std::string, int64_t> stats_;
};

void WriteEvent(const TracedRecv& in, int64_t line_start_ns,
                PlaneWriter* writer, XEvent* out) {
  out->set_metadata_id(writer->Metadata(in));
  out->set_offset_ps((in.start_ns - line_start_ns) * 1000);
  out->set_duration_ps(std::max<int64_t>(in.end_ns - in.start_ns, 0) * 1000);
  const std::vector<std::string> names = TensorNames(in);
  writer->AddText("peer", Peer(in), out);
  writer->AddNumber("slots", static_cast<int64_t>(names.size()), out);
  writer->AddNumber("bytes", in.bytes, out);
  writer->AddNumber("step_id", in.step_id, out);
  if (in.code != absl::StatusCode::kOk) {
    writer->AddText("error", absl::StatusCodeToString(in.code), out);
  }
  if (in.waits_micros.size() != names.size() || names.empty()) return;
  const auto slowest =
      std::max_element(in.waits_micros.begin(), in.waits_micros.end());
  writer->AddText("slowest_tensor", names[slowest - in.waits_micros.begin()],
                  out);
  writer->AddNumber("slowest_wait_us", *slowest, out);
  writer->AddText("waits_us", absl::StrJoin(in.waits_micros, ","), out);
}

// One line per direction and peer, and further ones where events overlap: those
// of one line must not.
void WriteLines(const std::vector<TracedRecv>& events, PlaneWriter* writer,
                XPlane* plane) {
  std::map<std::string, std::vector<const TracedRecv*>> by_name;
  int64_t first_ns = events.empty() ? 0 : events[0].start_ns;
  for (const TracedRecv& event : events) {
    first_ns = std::min(first_ns, event.start_ns);
    const char* direction = event.received != nullptr ? "from " : "to ";
    by_name[absl::StrCat(direction, Peer(event))].push_back(&event);
  }
  int64_t next_line = 1;
  for (auto& [name, of_peer] : by_name) {
    std::stable_sort(of_peer.begin(), of_peer.end(),
                     [](const TracedRecv* a, const TracedRecv* b) {
                       return a->start_ns < b->start_ns;
                     });
    // By the end of its last event: which line is free.
    std::vector<std::pair<int64_t, XLine*>> lines;
    for (const TracedRecv* event : of_peer) {
      auto free = std::find_if(lines.begin(), lines.end(), [&](auto& line) {
        return line.first <= event->start_ns;
      });
      if (free == lines.end()) {
        XLine* line = plane->add_lines();
        line->set_id(next_line++);
        line->set_name(lines.empty()
                           ? name
                           : absl::StrCat(name, " (", lines.size() + 1, ")"));
        line->set_timestamp_ns(first_ns);
        free = lines.insert(lines.end(), {0, line});
      }
      free->first = event->end_ns;
      WriteEvent(*event, first_ns, writer, free->second->add_events());
    }
  }
}

class RecvProfiler : public tsl::profiler::ProfilerInterface {
 public:
  ~RecvProfiler() override {
    int64_t dropped;
    if (started_) RecvTrace::Get()->Stop(&dropped);
  }

  absl::Status Start() override {
    RecvTrace::Get()->Start();
    started_ = true;
    return absl::OkStatus();
  }

  absl::Status Stop() override {
    if (started_) events_ = RecvTrace::Get()->Stop(&dropped_);
    started_ = false;
    return absl::OkStatus();
  }

  absl::Status CollectData(XSpace* space) override {
    if (events_.empty() && dropped_ == 0) return absl::OkStatus();
    XPlane* plane = space->add_planes();
    PlaneWriter writer(plane);
    WriteLines(events_, &writer, plane);
    if (dropped_ > 0) writer.AddNumber("dropped_events", dropped_, plane);
    events_.clear();
    return absl::OkStatus();
  }

 private:
  bool started_ = false;
  std::vector<TracedRecv> events_;
  int64_t dropped_ = 0;
};

[[maybe_unused]] const bool kRegistered = [] {
  tsl::profiler::RegisterProfilerFactory(
      [](const tensorflow::ProfileOptions& options)
          -> std::unique_ptr<tsl::profiler::ProfilerInterface> {
        if (options.host_tracer_level() == 0) return nullptr;
        return std::make_unique<RecvProfiler>();
      });
  return true;
}();

}  // namespace

}  // namespace tf_fuse
