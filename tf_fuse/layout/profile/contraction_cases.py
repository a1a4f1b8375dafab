# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the contractions that are measured, and what each computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from tf_fuse.layout.operators.contraction import CONVOLUTION, EINSUM, PRODUCT, transposed_by

# Of images, "", no text.
GRADIENT_OF_IMAGES: Final = "images"
# Followed by height and width of the filter.
GRADIENT_OF_FILTER: Final = "filter "

# Products with the one that is transposed, sums with their equation, and convolutions with the
# gradient that they make, as the layers of a model and their gradients have them: from what is all
# fixed cost to what is all arithmetic.
CONTRACTIONS: Final[Mapping[str, Sequence[tuple[str, Sequence[Sequence[int]]]]]] = {
    PRODUCT: [
        ("", [(16, 16), (16, 16)]),
        ("", [(48, 48), (48, 48)]),
        ("", [(64, 512), (512, 512)]),
        ("", [(512, 128), (128, 256)]),
        ("a", [(512, 128), (512, 256)]),
        ("b", [(512, 256), (128, 256)]),
        ("b", [(64, 512), (512, 512)]),
        ("", [(2048, 128), (128, 256)]),
        ("a", [(2048, 128), (2048, 256)]),
        ("", [(768, 384), (384, 512)]),
    ],
    EINSUM: [
        ("bhsk,bhtk->bhst", [(1, 4, 32, 16), (1, 4, 32, 16)]),
        ("bsd,dhk->bhsk", [(1, 32, 64), (64, 4, 16)]),
        ("bsd,dhk->bhsk", [(4, 32, 64), (64, 4, 16)]),
        ("bhsk,bhtk->bhst", [(4, 4, 64, 32), (4, 4, 64, 32)]),
        ("bhst,bhtk->bhsk", [(2, 4, 32, 32), (2, 4, 32, 16)]),
        ("bsd,bhsk->dhk", [(4, 64, 128), (4, 2, 64, 32)]),
        ("bsd,bhsk->hkd", [(2, 32, 64), (2, 4, 32, 16)]),
        ("bsd,df->bsf", [(4, 64, 128), (128, 512)]),
        ("bsf,df->bsd", [(2, 32, 256), (64, 256)]),
        ("bsd,bsf->df", [(4, 64, 128), (4, 64, 512)]),
    ],
    # Of images and a filter; of a filter and a result's gradient; of images and such a gradient.
    CONVOLUTION: [
        ("", [(1, 8, 8, 8), (3, 3, 8, 8)]),
        ("", [(2, 56, 56, 16), (3, 3, 16, 16)]),
        ("", [(2, 28, 28, 32), (3, 3, 32, 64)]),
        ("", [(4, 14, 14, 64), (1, 1, 64, 128)]),
        ("", [(4, 7, 7, 128), (3, 3, 128, 128)]),
        (GRADIENT_OF_IMAGES, [(3, 3, 8, 8), (1, 8, 8, 8)]),
        (GRADIENT_OF_IMAGES, [(3, 3, 32, 64), (2, 28, 28, 64)]),
        (GRADIENT_OF_IMAGES, [(3, 3, 128, 128), (4, 7, 7, 128)]),
        (f"{GRADIENT_OF_FILTER}3", [(1, 8, 8, 8), (1, 8, 8, 8)]),
        (f"{GRADIENT_OF_FILTER}3", [(2, 28, 28, 32), (2, 28, 28, 64)]),
        (f"{GRADIENT_OF_FILTER}3", [(4, 7, 7, 128), (4, 7, 7, 128)]),
    ],
}
# Of products, by what is transposed.
_EQUATIONS: Final = {"": "mk,kn->mn", "a": "km,kn->mn", "b": "mk,nk->mn"}


def work_of(kind: str, text: str, shapes: Sequence[Sequence[int]]) -> tuple[int, int, int, int]:
    """Return floating-point operations, elements touched, elements transposed, and operations.

    Each tensor that is copied to be transposed is an operation of its own.
    """
    if kind == CONVOLUTION:
        return _work_of_convolution(text, shapes)
    equation = _EQUATIONS.get(text, text)
    terms, _, output = equation.partition("->")
    sizes = {
        letter: size
        for term, shape in zip(terms.split(","), shapes, strict=True)
        for letter, size in zip(term, shape, strict=True)
    }
    elements = [*map(math.prod, shapes), math.prod(sizes[letter] for letter in output)]
    turned = transposed_by(text)
    if text in _EQUATIONS:
        turned = {i: False for i, one in enumerate("ab") if one == text}
    flops, transposed = 2 * math.prod(sizes.values()), sum(elements[i] for i in turned)
    return flops, sum(elements), transposed, 1 + sum(turned.values())


def _work_of_convolution(text: str, shapes: Sequence[Sequence[int]]) -> tuple[int, int, int, int]:
    """Return the same of a convolution whose result is as high and wide as its images."""
    left, right = shapes
    if text.startswith(GRADIENT_OF_FILTER):
        size = int(text.removeprefix(GRADIENT_OF_FILTER))
        images, cells, channels = left, size * size, (left[3], right[3])
    elif text == GRADIENT_OF_IMAGES:
        images, cells, channels = right, left[0] * left[1], (left[2], left[3])
    else:
        images, cells, channels = left, right[0] * right[1], (right[2], right[3])
    pixels = math.prod(images[:3])
    flops = 2 * pixels * cells * math.prod(channels)
    return flops, pixels * sum(channels) + cells * math.prod(channels), 0, 1
