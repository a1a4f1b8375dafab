// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Included before all else by the programs of programs.cmake. Abseil's hash
// tables have other members under a sanitizer, and protobuf marks memory as
// unused that TensorFlow's copy of it goes on to use: so headers are not to
// know that there is one. TensorFlow was built without.

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wbuiltin-macro-redefined"
#define __has_feature(x) 0
#pragma clang diagnostic pop
#else
#undef __SANITIZE_ADDRESS__
#undef __SANITIZE_THREAD__
#endif
