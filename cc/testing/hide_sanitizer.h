// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Hides the sanitizer from headers, since TensorFlow was built without one:
// with one, Abseil's hash tables have other members, and protobuf marks memory
// as unused that TensorFlow's copy of it goes on to use. The programs of
// programs.cmake include this before all else.

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wbuiltin-macro-redefined"
#define __has_feature(x) 0
#pragma clang diagnostic pop
#else
#undef __SANITIZE_ADDRESS__
#undef __SANITIZE_THREAD__
#endif
