// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0

#include "collectives/runtime/group_resolver.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "channel/chunk_server.h"
#include "channel/peer_card.h"
#include "collectives/reduce/choose_algorithm.h"
#include "collectives/runtime/kept_cancellation.h"
#include "transport/message/failed_slots.h"
#include "transport/peers/ask_peer.h"

namespace tf_fuse {

using tensorflow::CancellationManager;
using tensorflow::CollectiveParams;
using tensorflow::ConfigProto;
using tensorflow::DeviceAttributes;
using tensorflow::DeviceMgr;
using tensorflow::DeviceResolverDistributed;
using tensorflow::StatusCallback;
using tensorflow::WorkerCacheInterface;

namespace {

// How long the leader of a group may take to say who has come.
constexpr int kLeaderTimeoutMs = 2000;
constexpr size_t kMaxNames = 20;

// How TensorFlow ends a group for all when one member's call of it ends.
constexpr char kGroupCancelled[] = "group is cancelled";

// Whether TensorFlow has none of it for CPUs. (It names one when it looks for
// it, which is on the leader.)
bool IsUnknown(const CollectiveParams& params) {
  return params.instance.type == tensorflow::REDUCE_SCATTER_COLLECTIVE &&
         params.group.device_type == tensorflow::DeviceType("CPU");
}

std::string Names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNames);
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (shown < names.size()) {
    absl::StrAppend(&text, " and ", names.size() - shown, " more");
  }
  return text;
}

}  // namespace

FuseParamResolver::FuseParamResolver(
    const ConfigProto& config, const DeviceMgr* devices,
    DeviceResolverDistributed* resolver,
    std::shared_ptr<WorkerCacheInterface> workers, const std::string& task,
    const std::string& host, uint64_t token, std::shared_ptr<Joins> joins)
    : CollectiveParamResolverDistributed(config, devices, resolver,
                                         /*nccl_communicator=*/nullptr,
                                         workers.get(), task),
      workers_(std::move(workers)),
      own_prefix_(task + "/"),
      host_(host),
      token_(token),
      joins_(std::move(joins)) {}

struct FuseParamResolver::EarlyJoin {
  Joins::Join join;
  std::vector<tensorflow::CompleteInstanceResponse> responses;
  CancellationManager cancellation;
};

void FuseParamResolver::JoinEarly() {
  for (Joins::Join& join : joins_->All()) {
    auto early = std::make_shared<EarlyJoin>();
    early->join = std::move(join);
    std::vector<tensorflow::CompleteInstanceRequest>& broadcasts =
        early->join.broadcasts;
    {
      absl::MutexLock lock(&mu_);
      const auto [known, is_new] = taken_over_.try_emplace(
          {early->join.group.group_key, early->join.device.incarnation()});
      const size_t before = std::exchange(known->second, broadcasts.size());
      if (!is_new && before >= broadcasts.size()) continue;
      broadcasts.erase(broadcasts.begin(), broadcasts.begin() + before);
      early_instances_.try_emplace(early->join.group.group_key);
    }
    early->responses.resize(broadcasts.size());
    CollectiveParamResolverDistributed::CompleteGroupAsync(
        early->join.device, &early->join.group, &early->cancellation,
        [this, early](const absl::Status& status) { JoinBroadcasts(early); });
  }
}

void FuseParamResolver::JoinBroadcasts(
    const std::shared_ptr<EarlyJoin>& early) {
  std::vector<std::function<void()>> asked;
  {
    absl::MutexLock lock(&mu_);
    auto found = early_instances_.find(early->join.group.group_key);
    if (found != early_instances_.end()) {
      asked.swap(found->second);
      early_instances_.erase(found);
    }
  }
  for (size_t i = 0; i < early->responses.size(); ++i) {
    AnswerInstance(&early->join.broadcasts[i], &early->responses[i],
                   &early->cancellation,
                   [early](const absl::Status& status) {});
  }
  for (const std::function<void()>& ask : asked) ask();
}

void FuseParamResolver::CompleteParamsAsync(const DeviceAttributes& device,
                                            CollectiveParams* params,
                                            CancellationManager* cancellation,
                                            const StatusCallback& done) {
  joins_->CountUse(params->group.group_key);
  // A caller that has timed out keeps neither until this is called.
  tensorflow::core::IntrusivePtr<CollectiveParams> kept(params,
                                                        /*add_ref=*/true);
  auto own = KeptCancellation::Of(cancellation);
  const IdleInstances::Key instance(params->group.group_key,
                                    params->instance.step_id,
                                    params->instance.instance_key);
  instances_.Begin(instance);
  CollectiveParamResolverDistributed::CompleteParamsAsync(
      WithCard(device), params, own->manager(),
      [this, params, instance, kept = std::move(kept), own,
       done](absl::Status status) {
        EndUse(instance);
        own->End();
        if (status.ok()) {
          ChooseAlgorithm(params);
        } else if (IsUnknown(*params)) {
          status.SetPayload(kUnknownCollective, absl::Cord());
        }
        done(Named(status, params->group.group_key));
      });
}

void FuseParamResolver::CompleteGroupAsync(const DeviceAttributes& device,
                                           tensorflow::CollGroupParams* params,
                                           CancellationManager* cancellation,
                                           const StatusCallback& done) {
  if (absl::StartsWith(device.name(), own_prefix_)) {
    joins_->CountUse(params->group_key);
    return CollectiveParamResolverDistributed::CompleteGroupAsync(
        WithCard(device), params, cancellation, done);
  }
  // A group that is not complete answers later, when this task joins.
  Joins::Join join = {device, *params, {}};
  const bool joins_again = IsMember(device, params->group_key);
  const uint64_t uses = joins_->Come(device, params->group_key);
  auto at_once = std::make_shared<std::atomic<bool>>(true);
  CollectiveParamResolverDistributed::CompleteGroupAsync(
      device, params, cancellation,
      [this, join = std::move(join), joins_again, uses, at_once,
       done](const absl::Status& status) {
        // Before the device has its answer: it asks for a broadcast next, and
        // this task may begin anew before this call returns.
        if (status.ok() && joins_again && *at_once) joins_->Add(join, uses);
        done(Named(status, join.group.group_key));
      });
  *at_once = false;
}

void FuseParamResolver::CompleteInstanceAsync(
    const tensorflow::CompleteInstanceRequest* request,
    tensorflow::CompleteInstanceResponse* response,
    CancellationManager* cancellation, const StatusCallback& done) {
  const auto ask = [=, this] {
    AnswerInstance(request, response, cancellation,
                   [=, this](const absl::Status& status) {
                     if (status.ok() &&
                         request->type() == tensorflow::BROADCAST_COLLECTIVE) {
                       joins_->AddBroadcast(*request);
                     }
                     done(status);
                   });
  };
  {
    absl::MutexLock lock(&mu_);
    auto found = early_instances_.find(request->group_key());
    if (found != early_instances_.end()) return found->second.push_back(ask);
  }
  ask();
}

void FuseParamResolver::AnswerInstance(
    const tensorflow::CompleteInstanceRequest* request,
    tensorflow::CompleteInstanceResponse* response,
    CancellationManager* cancellation, StatusCallback done) {
  const IdleInstances::Key instance(request->group_key(), request->step_id(),
                                    request->instance_key());
  instances_.Begin(instance);
  CollectiveParamResolverDistributed::CompleteInstanceAsync(
      request, response, cancellation,
      [this, instance, done = std::move(done)](const absl::Status& status) {
        EndUse(instance);
        done(status);
      });
}

// Before it reports the end, which may end this task. TensorFlow reads nothing
// of the record after it has called the callback of the last call.
void FuseParamResolver::EndUse(const IdleInstances::Key& key) {
  instances_.End(key, [this](const IdleInstances::Key& idle) {
    const auto& [group, step, instance] = idle;
    tensorflow::mutex_lock lock(instance_mu_);
    auto of_group = instance_table_.find(group);
    if (of_group == instance_table_.end()) return;
    auto found = of_group->second.find({step, instance});
    if (found == of_group->second.end()) return;
    // A broadcast's record counts the members that have come.
    if (found->second->shared->instance.type ==
        tensorflow::BROADCAST_COLLECTIVE) {
      return;
    }
    of_group->second.erase(found);
  });
}

void FuseParamResolver::StartAbort(const absl::Status& status) {
  instances_.Stop();  // TensorFlow walks over all records without a lock.
  CollectiveParamResolverDistributed::StartAbort(status);
  joins_->GoOn();
}

bool FuseParamResolver::IsMember(const DeviceAttributes& device,
                                 int32_t group_key) {
  GroupRec* const known = GetCachedGroup(group_key);
  if (known == nullptr) return false;
  tensorflow::mutex_lock lock(known->mu);
  return std::any_of(known->group.members.begin(), known->group.members.end(),
                     [&device](const tensorflow::CollGroupMember& member) {
                       return member.device.name() == device.name() &&
                              member.device.incarnation() ==
                                  device.incarnation();
                     });
}

v1::WaitingGroups FuseParamResolver::Waiting() {
  v1::WaitingGroups waiting;
  if (!group_leader_.empty()) return waiting;
  tensorflow::mutex_lock table_lock(group_mu_);
  for (const auto& [key, record] : group_table_) {
    GroupRec* const known = record.get();
    tensorflow::mutex_lock lock(known->mu);
    const size_t size = static_cast<size_t>(known->group.group_size);
    if (known->group.members.size() >= size) continue;
    v1::WaitingGroups::Group* const group = waiting.add_groups();
    group->set_key(key);
    group->set_size(known->group.group_size);
    for (const tensorflow::CollGroupMember& member : known->group.members) {
      group->add_devices(member.device.name());
    }
  }
  return waiting;
}

std::string FuseParamResolver::WhoHasCome(int32_t group_key) {
  if (group_leader_.empty()) return Describe(Waiting(), group_key);
  // Who asks may be gone before a late answer comes.
  struct Answer {
    absl::Notification came;
    absl::Status status;
    tensorflow::Tensor frame;
  };
  auto answer = std::make_shared<Answer>();
  v1::FuseRecvTensorRequest question;
  question.set_question(v1::QUESTION_GROUPS);
  AskPeer(
      workers_, group_leader_, dev_mgr_->HostCPU(), std::move(question),
      kLeaderTimeoutMs,
      [answer](const absl::Status& status, const tensorflow::Tensor& frame) {
        answer->status = status;
        answer->frame = frame;
        answer->came.Notify();
      });
  // The call has its own deadline; this one guards against a lost answer.
  if (!answer->came.WaitForNotificationWithTimeout(
          absl::Milliseconds(2 * kLeaderTimeoutMs))) {
    answer->status = absl::DeadlineExceededError("no answer");
  }
  if (IsAnswerOfPlainPeer(answer->status)) return "";
  if (!answer->status.ok()) {
    return absl::StrCat(" ", group_leader_, ", the leader of group ", group_key,
                        ", which knows the members that have come, does not "
                        "answer: ",
                        absl::StatusCodeToString(answer->status.code()), ".");
  }
  const absl::StatusOr<std::string> bytes = ReadBytesResponse(answer->frame);
  v1::WaitingGroups waiting;
  // An older version takes the question for another one.
  if (!bytes.ok() || !waiting.ParseFromString(*bytes)) return "";
  return Describe(waiting, group_key);
}

absl::Status FuseParamResolver::Named(const absl::Status& status,
                                      int32_t group_key) {
  if (!group_leader_.empty() || !absl::IsCancelled(status) ||
      status.message() != kGroupCancelled) {
    return status;
  }
  absl::Status named(
      status.code(),
      absl::StrCat(status.message(), ": a member has given up waiting for it.",
                   Describe(Waiting(), group_key)));
  status.ForEachPayload([&named](absl::string_view url, const absl::Cord& x) {
    named.SetPayload(url, x);
  });
  return named;
}

std::string FuseParamResolver::Describe(const v1::WaitingGroups& groups,
                                        int32_t group_key) {
  const auto group = std::find_if(
      groups.groups().begin(), groups.groups().end(),
      [group_key](const auto& one) { return one.key() == group_key; });
  if (group == groups.groups().end()) return "";
  const std::vector<std::string> come(group->devices().begin(),
                                      group->devices().end());
  std::vector<std::string> absent;
  workers_->ListWorkers(&absent);
  absent.erase(std::remove_if(absent.begin(), absent.end(),
                              [&come](const std::string& task) {
                                return std::any_of(
                                    come.begin(), come.end(),
                                    [&task](const std::string& device) {
                                      return absl::StartsWith(device,
                                                              task + "/");
                                    });
                              }),
               absent.end());
  std::sort(absent.begin(), absent.end());
  return absl::StrCat(" Group ", group_key, " has ", come.size(), " of ",
                      group->size(), " members: ", Names(come), ".",
                      absent.empty() ? "" : " No member has come from ",
                      Names(absent), absent.empty() ? "" : ".");
}

DeviceAttributes FuseParamResolver::WithCard(const DeviceAttributes& device) {
  DeviceAttributes attributes = device;
  if (absl::StartsWith(device.name(), own_prefix_) &&
      !CardOf(device).has_value()) {
    AttachCard(Card(), &attributes);
  }
  return attributes;
}

const v1::PeerCard& FuseParamResolver::Card() {
  absl::MutexLock lock(&mu_);
  if (card_.version() == 0) {
    card_.set_version(kChannelVersion);
    card_.set_task_token(token_);
    card_.set_serves_grpc(AllowedPaths().grpc);
    card_.set_algorithms(OwnAlgorithms());
    FillInDataPaths(host_, &card_);
  }
  return card_;
}

}  // namespace tf_fuse
