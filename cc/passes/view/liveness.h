// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Finds nodes that may be dead: an untaken branch of a conditional sends its
// tensors as "dead", and so do all nodes below it.
//
// For every node a *condition* is computed: a conjunction of literals
// "predicate P has value v" under which the node is live. The empty condition
// means that the node is live in every step. What cannot be expressed becomes a
// literal of its own, so the answer errs towards "may be dead".
//
//   Switch(data, P)   output v: condition(data) and condition(P) and P == v;
//                     a control edge from it: condition(data) and condition(P)
//   Merge(a, b)       a or b; C and P==0, C and P==1 together give C. Control
//                     inputs, live or dead, make it wait, but not dead
//   Merge of a loop   the condition under which the loop is entered, if what
//                     comes round is live whenever the loop goes on: a dead
//                     value does not come round, so the Merge would not run
//   Exit              of such a variable: the condition under which the loop is
//                     entered
//   Send -> Recv      passed on
//   anything else     the conjunction over all inputs, control inputs included
//
// Inside a loop all of this is about one iteration: no predicate is followed
// through a Merge, Enter or Exit, so those of a condition have one value in
// each iteration of their frame.
//
// (XLA's deadness analysis has the same aim within one graph; this one follows
// predicates across partitions.)

#ifndef TF_FUSE_CC_PASSES_VIEW_LIVENESS_H_
#define TF_FUSE_CC_PASSES_VIEW_LIVENESS_H_

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "passes/view/partition_view.h"

namespace tf_fuse {

class Liveness {
 public:
  // `live_receives` are known to be live though their senders may not be in
  // the view.
  //
  // REQUIRES: view.topological_order() is not empty unless the view is.
  explicit Liveness(const PartitionView& view,
                    std::set<NodeId> live_receives = {});

  // False only if every output of the node is live whenever it runs: in every
  // step, and in every iteration that its frame has. A Switch may always be
  // dead.
  bool MayBeDead(NodeId id) const { return conditions_[id] != kAlways; }

 private:
  struct Literal {
    int predicate = 0;  // Index of a tensor, or of an unknown if negative.
    int value = 0;
    bool operator<(const Literal& other) const {
      return std::tie(predicate, value) <
             std::tie(other.predicate, other.value);
    }
    bool operator==(const Literal& other) const {
      return predicate == other.predicate && value == other.value;
    }
  };
  using Conjunction = std::vector<Literal>;  // Sorted, without repetition.
  using ConditionId = int;
  static constexpr ConditionId kAlways = 0;
  static const Literal kTooLong;

  ConditionId Intern(Conjunction literals);
  ConditionId And(ConditionId a, ConditionId b);
  ConditionId Unknown(NodeId id);
  // The condition of one output: differs from the node's for a Switch.
  ConditionId OfEdge(const PartitionView::Edge& edge);
  ConditionId OfInputs(NodeId id);
  ConditionId OfMerge(NodeId id);
  ConditionId OfLoopMerge(NodeId id);
  ConditionId OfExit(NodeId id);
  // Whether the Exit takes its value from a Switch on the loop's own LoopCond,
  // and that one is reached whenever the loop is entered.
  bool LeavesWhenLoopEnds(NodeId exit) const;
  // Whether `literals` hold in every iteration of a loop entered under `entry`.
  bool HoldsInLoop(const Conjunction& literals, ConditionId entry) const;
  ConditionId Compute(NodeId id);

  // The tensor that input number `input` of the node stems from, through
  // Identity, Send and Recv; {id, -1} if there is no such input.
  std::pair<NodeId, int> StemOf(NodeId id, int input) const;
  int PredicateIndex(NodeId switch_id);

  void ComputeAll();
  // Merges of loops whose value may die on its way round.
  std::set<NodeId> FindUnsteadyMerges();

  const PartitionView& view_;
  const std::set<NodeId> live_receives_;
  std::vector<ConditionId> conditions_;
  std::map<Conjunction, ConditionId> interned_;
  std::vector<Conjunction> conjunctions_;
  std::map<std::pair<NodeId, int>, int> predicates_;
  std::vector<int> predicate_arity_;
  std::set<int> loop_predicates_;
  std::map<std::string, ConditionId> frame_entry_;
  std::set<NodeId> unsteady_merges_;
};

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_PASSES_VIEW_LIVENESS_H_
