// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Lets another thread hear of SIGTERM, beside what handles it already: often
// TensorFlow's notifier of preemptions, after which the process goes on.
// Python's handlers run when the main thread returns to Python, which it may
// never do.

#ifndef TF_FUSE_CC_BASE_SIGTERM_H_
#define TF_FUSE_CC_BASE_SIGTERM_H_

namespace tf_fuse {

// Catches SIGTERM from now on, unless it is ignored. A handler that was there
// before runs as before. A second call does nothing, unless the program has set
// another handler since: then that one runs as well.
void CatchSigterm();

// Gives SIGTERM the action that it had before, if it is still caught.
void ReleaseSigterm();

// Waits for a SIGTERM. True if it ends the process, for lack of a handler: that
// happens in EndBySigterm(), or after `seconds`, whatever other threads do.
bool WaitForSigterm(double seconds);

// Ends the process by SIGTERM.
void EndBySigterm();

}  // namespace tf_fuse

#endif  // TF_FUSE_CC_BASE_SIGTERM_H_
