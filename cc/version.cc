// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// By itself: a new version compiles this file alone.

#include "c_api.h"

const char* tf_fuse_version() { return TF_FUSE_VERSION; }
