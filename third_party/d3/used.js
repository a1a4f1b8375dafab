// Copyright 2026 The tf_fuse Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the page of a report uses of d3. build.py bundles these and what they need.

export { extent, groups, max, rollups, sum } from "d3-array";
export { axisBottom, axisTop } from "d3-axis";
export { scaleLinear, scalePoint, scaleSqrt } from "d3-scale";
export { select } from "d3-selection";
export { zoom, zoomIdentity } from "d3-zoom";
