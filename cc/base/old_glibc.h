// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// CMake includes this file before every source of the library. It binds
// functions that a newer glibc offers in two versions to the older one, so that
// the library loads on glibc 2.27, as TensorFlow's wheels do. TensorFlow's own
// kernels call the same versions, so approximations keep TensorFlow's bits.
// old_glibc.cc defines what no older version offers.

#ifndef TF_FUSE_CC_BASE_OLD_GLIBC_H_
#define TF_FUSE_CC_BASE_OLD_GLIBC_H_

#if defined(__x86_64__)
#define TF_FUSE_FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define TF_FUSE_FIRST_GLIBC "GLIBC_2.17"
#endif

#ifdef TF_FUSE_FIRST_GLIBC
#define TF_FUSE_BIND(name) \
  __asm__(".symver " #name "," #name "@" TF_FUSE_FIRST_GLIBC)

TF_FUSE_BIND(exp);
TF_FUSE_BIND(log);
TF_FUSE_BIND(pow);
#ifdef TF_FUSE_FIRST_FLOAT_FUNCTIONS
TF_FUSE_BIND(expf);
TF_FUSE_BIND(logf);
TF_FUSE_BIND(powf);
#endif
TF_FUSE_BIND(sem_init);
TF_FUSE_BIND(sem_post);
TF_FUSE_BIND(sem_wait);

#undef TF_FUSE_BIND
#undef TF_FUSE_FIRST_GLIBC
#endif

#endif  // TF_FUSE_CC_BASE_OLD_GLIBC_H_
