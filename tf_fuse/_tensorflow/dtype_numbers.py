# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the numbers of data types in graphs (`DataType` of TensorFlow), from `tf.dtypes`."""

from __future__ import annotations

from typing import Final

from tensorflow.python.framework import dtypes as _dtypes

FLOAT: Final[int] = _dtypes.float32.as_datatype_enum
DOUBLE: Final[int] = _dtypes.float64.as_datatype_enum
HALF: Final[int] = _dtypes.half.as_datatype_enum
BFLOAT16: Final[int] = _dtypes.bfloat16.as_datatype_enum
INT32: Final[int] = _dtypes.int32.as_datatype_enum
INT64: Final[int] = _dtypes.int64.as_datatype_enum
BOOL: Final[int] = _dtypes.bool.as_datatype_enum
RESOURCE: Final[int] = _dtypes.resource.as_datatype_enum
VARIANT: Final[int] = _dtypes.variant.as_datatype_enum
