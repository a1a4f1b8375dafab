// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Keeps the functions of a coordinator in their place while other threads add
// functions.

#ifndef TF_FUSE_CC_SERVER_CLUSTER_FUNCTIONS_H_
#define TF_FUSE_CC_SERVER_CLUSTER_FUNCTIONS_H_

namespace tensorflow {
class EagerContext;
}

namespace tf_fuse {

// Reserves memory for the parts of functions that run on other tasks, which
// the system gives when they are there. TensorFlow keeps them in a vector, and
// EagerClusterFunctionLibraryRuntime::Run uses the address of an element
// without a lock: a thread that adds one can move it away, and the process
// ends with a segmentation fault.
//
// Call it when the context has been connected to a cluster, before it runs
// functions there.
void ReserveClusterFunctions(tensorflow::EagerContext* context);

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_SERVER_CLUSTER_FUNCTIONS_H_
