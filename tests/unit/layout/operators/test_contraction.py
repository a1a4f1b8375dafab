# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors an Einstein sum transposes, as TensorFlow's kernel does (einsum_op_impl.h)."""

import pytest

from tf_fuse.layout.operators.contraction import transposed_by


@pytest.mark.parametrize(
    ("equation", "transposed"),
    [
        ("bsd,df->bsf", {}),
        # The contracted dimensions come first: the product reads this input transposed.
        ("bsd,bsf->df", {0: False}),
        ("km,kn->mn", {0: False}),
        ("mk,nk->mn", {1: False}),
        ("bhsk,bhtk->bhst", {1: False}),
        ("bhst,bhtk->bhsk", {}),
        ("bsf,df->bsd", {1: False}),
        # What stays stands between what is contracted: it is copied.
        ("bsd,bhsk->dhk", {0: False, 1: True}),
        ("bsd,bhsk->hkd", {0: False, 1: True, 2: True}),
        ("bsd,dhk->bhsk", {2: True}),
        ("...ij,...jk->...ik", {}),
        ("ij->ji", {}),
        ("ii,ij->ij", {}),
    ],
)
def test_what_an_einstein_sum_transposes(equation, transposed):
    assert transposed_by(equation) == transposed
