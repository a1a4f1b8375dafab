// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The functors are TensorFlow's own, and this file is compiled for the
// processors that the wheel needs anyway (on x86-64: AVX), so that vector
// registers hold as many elements as there.

#include "update/block_ops.h"

#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#define EIGEN_USE_THREADS
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/kernels/cwise_ops.h"

namespace tf_fuse {

using tensorflow::DataType;
using tensorflow::DataTypeToEnum;

namespace functor = tensorflow::functor;

namespace {

template <typename T>
using Packet = typename Eigen::internal::packet_traits<T>::type;

template <typename T>
constexpr int kPacket = Eigen::internal::packet_traits<T>::size;

// Whether this file's compiler and TensorFlow's make the same bits of an
// extremum or a hyperbolic tangent. On aarch64 they choose other instructions
// for the last elements of a tensor of float32: the last bit of a tangent, the
// sign of a zero and a denormal differ there.
#ifdef __aarch64__
template <typename T>
constexpr bool kSameAtTheEnd = !std::is_same_v<T, float>;
#else
template <typename T>
constexpr bool kSameAtTheEnd = true;
#endif

// Whether TensorFlow computes it by registers.
template <typename Functor, typename In, typename Out>
constexpr bool kByPackets =
    Eigen::internal::functor_traits<Functor>::PacketAccess &&
    std::is_same_v<In, Out> && (kPacket<In> > 1);

template <typename Functor, typename In, typename Out>
void Unary(const BlockOperand* operands, void* output, int64_t n) {
  const Functor functor;
  const In* in = static_cast<const In*>(operands[0].data);
  Out* out = static_cast<Out*>(output);
  int64_t i = 0;
  if (operands[0].single) {
    const In value = *in;
    for (; i < n; ++i) out[i] = functor(value);
    return;
  }
  if constexpr (kByPackets<Functor, In, Out>) {
    for (; i + kPacket<In> <= n; i += kPacket<In>) {
      Eigen::internal::pstoreu(
          out + i,
          functor.packetOp(Eigen::internal::ploadu<Packet<In>>(in + i)));
    }
  }
  for (; i < n; ++i) out[i] = functor(in[i]);
}

template <typename Functor>
constexpr bool kIsExtremum = false;
template <typename T>
constexpr bool
    kIsExtremum<Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>> =
        true;
template <typename T>
constexpr bool
    kIsExtremum<Eigen::internal::scalar_min_op<T, T, Eigen::PropagateNaN>> =
        true;

// Computes one element. Threads take denormals for zero: instructions for a
// maximum, which TensorFlow has here, make zero of one; comparing and choosing,
// which this file's compiler prefers, keeps it. Of equal ones it is the first.
template <typename Functor, typename In, typename Out>
Out BinaryOne(const In& left, const In& right) {
  if constexpr (kIsExtremum<Functor> && kByPackets<Functor, In, Out> &&
                std::is_floating_point_v<In>) {
    using Eigen::internal::pset1;
    return Eigen::internal::pfirst(
        Functor().packetOp(pset1<Packet<In>>(right), pset1<Packet<In>>(left)));
  } else {
    return Functor()(left, right);
  }
}

template <typename Functor, typename In, typename Out, bool kLeftSingle,
          bool kRightSingle>
void BinaryOf(const In* left, const In* right, Out* out, int64_t n) {
  [[maybe_unused]] const Functor functor;
  const In l = *left, r = *right;
  int64_t i = 0;
  if constexpr (kByPackets<Functor, In, Out>) {
    using Eigen::internal::ploadu;
    using Eigen::internal::pset1;
    const Packet<In> ls = pset1<Packet<In>>(l), rs = pset1<Packet<In>>(r);
    for (; i + kPacket<In> <= n; i += kPacket<In>) {
      Eigen::internal::pstoreu(
          out + i,
          functor.packetOp(kLeftSingle ? ls : ploadu<Packet<In>>(left + i),
                           kRightSingle ? rs : ploadu<Packet<In>>(right + i)));
    }
  }
  for (; i < n; ++i) {
    out[i] = BinaryOne<Functor, In, Out>(kLeftSingle ? l : left[i],
                                         kRightSingle ? r : right[i]);
  }
}

template <typename Functor, typename In, typename Out>
void Binary(const BlockOperand* operands, void* output, int64_t n) {
  if (n == 0) return;
  const In* left = static_cast<const In*>(operands[0].data);
  const In* right = static_cast<const In*>(operands[1].data);
  Out* out = static_cast<Out*>(output);
  if (operands[0].single && operands[1].single) {
    const Out value = BinaryOne<Functor, In, Out>(*left, *right);
    for (int64_t i = 0; i < n; ++i) out[i] = value;
  } else if (operands[0].single) {
    BinaryOf<Functor, In, Out, true, false>(left, right, out, n);
  } else if (operands[1].single) {
    BinaryOf<Functor, In, Out, false, true>(left, right, out, n);
  } else {
    BinaryOf<Functor, In, Out, false, false>(left, right, out, n);
  }
}

template <typename T>
const T& At(const BlockOperand& operand, int64_t i) {
  return static_cast<const T*>(operand.data)[operand.single ? 0 : i];
}

template <typename T>
void Choose(const BlockOperand* operands, void* output, int64_t n) {
  T* out = static_cast<T*>(output);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = At<bool>(operands[0], i) ? At<T>(operands[1], i)
                                      : At<T>(operands[2], i);
  }
}

template <typename In, typename Out>
struct CastTo {
  Out operator()(const In& value) const { return static_cast<Out>(value); }
};

template <typename In, typename Out>
void Convert(const BlockOperand* operands, void* output, int64_t n) {
  Out* out = static_cast<Out*>(output);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<Out>(At<In>(operands[0], i));
  }
}

template <typename T>
void Copy(const BlockOperand* operands, void* output, int64_t n) {
  const T* in = static_cast<const T*>(operands[0].data);
  T* out = static_cast<T*>(output);
  if (operands[0].single) {
    for (int64_t i = 0; i < n; ++i) out[i] = *in;
  } else if (in != out) {
    std::memcpy(out, in, n * sizeof(T));
  }
}

template <int kValue, typename T>
void Fill(const BlockOperand*, void* output, int64_t n) {
  T* out = static_cast<T*>(output);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(kValue);
}

class Table {
 public:
  Table() {
    AddReal<float>();
    AddReal<double>();
    AddReal<Eigen::half>();
    AddReal<Eigen::bfloat16>();
    AddNumbers<int32_t>();
    AddNumbers<int64_t>();
    AddConversions<float>();
    AddConversions<double>();
    AddConversions<int32_t>();
    AddConversions<int64_t>();
    AddConversions<bool>();
    Add<bool, bool>("LogicalNot", Unary<functor::logical_not::func, bool, bool>,
                    1);
    Add<bool, bool>("LogicalAnd",
                    Binary<functor::logical_and::func, bool, bool>, 2);
    Add<bool, bool>("LogicalOr", Binary<functor::logical_or::func, bool, bool>,
                    2);
    AddAny<bool>();
  }

  BlockOp Find(std::string_view op, DataType operand, DataType result) const {
    const auto found = ops_.find(Key(op, operand, result));
    return found == ops_.end() ? BlockOp() : found->second;
  }

 private:
  using Key = std::tuple<std::string_view, DataType, DataType>;

  template <typename In, typename Out>
  void Add(std::string_view op, BlockFunction function, int operands) {
    ops_[Key(op, DataTypeToEnum<In>::value, DataTypeToEnum<Out>::value)] = {
        function, operands};
  }

  template <typename Functor, typename T>
  void Add1(std::string_view op) {
    Add<T, T>(op, Unary<typename Functor::func, T, T>, 1);
  }

  template <typename Functor, typename T>
  void Add2(std::string_view op) {
    Add<T, T>(op, Binary<typename Functor::func, T, T>, 2);
  }

  template <typename Functor, typename T>
  void Compare(std::string_view op) {
    Add<T, bool>(op, Binary<typename Functor::func, T, bool>, 2);
  }

  template <typename T>
  void AddAny() {
    Add<T, T>("Select", Choose<T>, 3);
    Add<T, T>("SelectV2", Choose<T>, 3);
    Add<T, T>("ZerosLike", Fill<0, T>, 1);
    Add<T, T>("OnesLike", Fill<1, T>, 1);
  }

  template <typename T>
  void AddNumbers() {
    AddAny<T>();
    Add1<functor::abs<T>, T>("Abs");
    Add1<functor::neg<T>, T>("Neg");
    Add1<functor::sign<T>, T>("Sign");
    Add1<functor::square<T>, T>("Square");
    Add2<functor::add<T>, T>("Add");
    Add2<functor::add<T>, T>("AddV2");
    Add2<functor::sub<T>, T>("Sub");
    Add2<functor::mul<T>, T>("Mul");
    if constexpr (kSameAtTheEnd<T>) {
      Add2<functor::maximum<T>, T>("Maximum");
      Add2<functor::minimum<T>, T>("Minimum");
    }
    Add2<functor::squared_difference<T>, T>("SquaredDifference");
    Compare<functor::less<T>, T>("Less");
    Compare<functor::less_equal<T>, T>("LessEqual");
    Compare<functor::greater<T>, T>("Greater");
    Compare<functor::greater_equal<T>, T>("GreaterEqual");
    Compare<functor::equal_to<T>, T>("Equal");
    Compare<functor::not_equal_to<T>, T>("NotEqual");
  }

  template <typename T>
  void AddReal() {
    AddNumbers<T>();
    Add1<functor::exp<T>, T>("Exp");
    Add1<functor::log<T>, T>("Log");
    Add1<functor::rsqrt<T>, T>("Rsqrt");
    Add1<functor::sqrt<T>, T>("Sqrt");
    if constexpr (kSameAtTheEnd<T>) Add1<functor::tanh<T>, T>("Tanh");
    Add1<functor::inverse<T>, T>("Inv");
    Add1<functor::inverse<T>, T>("Reciprocal");
    Add2<functor::div<T>, T>("Div");
    Add2<functor::div_no_nan<T>, T>("DivNoNan");
    Add2<functor::div<T>, T>("RealDiv");
    Add2<functor::mul_no_nan<T>, T>("MulNoNan");
    Add2<functor::pow<T>, T>("Pow");
    Add<T, bool>("IsFinite",
                 Unary<typename functor::isfinite<T>::func, T, bool>, 1);
    Add<T, bool>("IsInf", Unary<typename functor::isinf<T>::func, T, bool>, 1);
    Add<T, bool>("IsNan", Unary<typename functor::isnan<T>::func, T, bool>, 1);
  }

  // Where a value cannot be represented, TensorFlow's own result depends on the
  // instructions; so nothing is converted to a narrower type.
  template <typename In>
  void AddConversions() {
    if constexpr (!std::is_floating_point_v<In>) {
      Add<In, int32_t>("Cast", Convert<In, int32_t>, 1);
      Add<In, int64_t>("Cast", Convert<In, int64_t>, 1);
    }
    Add<In, float>("Cast", Convert<In, float>, 1);
    Add<In, double>("Cast", Convert<In, double>, 1);
  }

  std::map<Key, BlockOp> ops_;
};

}  // namespace

BlockOp FindBlockOp(std::string_view op, DataType operand, DataType result) {
  static const Table* const table = new Table;
  return table->Find(op, operand, result);
}

BlockFunction CopyOf(int bytes) {
  switch (bytes) {
    case 1:
      return Copy<uint8_t>;
    case 2:
      return Copy<uint16_t>;
    case 4:
      return Copy<uint32_t>;
    default:
      return Copy<uint64_t>;
  }
}

}  // namespace tf_fuse
