// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow decodes variants by functions that trust what they are given: of a
// Tensor without a tensor, the process ends. So what comes from a peer is
// looked through before.

#ifndef TF_FUSE_CC_TRANSPORT_MESSAGE_CHECK_VARIANTS_H_
#define TF_FUSE_CC_TRANSPORT_MESSAGE_CHECK_VARIANTS_H_

#include "tensorflow/core/framework/tensor.pb.h"

namespace tf_fuse {

// Whether Tensor::FromProto() may be given this: every tensor in it is whole
// and has no more elements than bytes, and each variant is of a kind whose
// decoder is known, and has what that reads: a Tensor, a TensorList, a number.
// Of others the receiver cannot tell; they are not packed, but received as they
// would be without tf_fuse. Decodes what is nested.
bool CanBeDecoded(const tensorflow::TensorProto& proto);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_TRANSPORT_MESSAGE_CHECK_VARIANTS_H_
