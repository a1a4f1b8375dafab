# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of softmax, cross-entropy and batch norm, which reduce over split dimensions.

Devices exchange one number for each row (or channel), not the rows. Megatron-LM (Shoeybi
et al., 2019, section 3) computes the cross-entropy over a split vocabulary so.
"""

from __future__ import annotations

from tf_fuse.layout.operators.rule import Inner, Rule, Work, Written, dimension_of, expect, make
from tf_fuse.layout.types.operation import Operation


def softmax(operation: Operation) -> Rule:
    """Return the rule of `Softmax` and `LogSoftmax`, with `axis`.

    Over the split dimension the devices find the maximum and the sum of each row, one after the
    other; for the gradient the sum of its products.
    """
    expect(operation, [None], [None])
    rank = len(operation.inputs[0].shape)
    at = dimension_of(operation, operation.attribute("axis", -1), rank)
    names = [f"d{i}" for i in range(rank)]
    rows = Work(1, tuple(name for i, name in enumerate(names) if i != at))
    return make(
        operation,
        [names],
        [names],
        inner=[
            Inner(names[at], "max", rows),
            Inner(names[at], "sum", rows),
            Inner(names[at], "sum", rows, backward=True),
        ],
        # As oneDNN's softmax; rows with infinite or NaN values take more.
        extra=[(names[at], 5 if operation.kind == "LogSoftmax" else 8)],
        work=[Work(16 if operation.kind == "LogSoftmax" else 5, tuple(names))],
        backward_work=[Work(4, tuple(names))],
        saved_inputs=(),
        saved_outputs=(0,),
    )


def cross_entropy(operation: Operation) -> Rule:
    """Return the rule of `SoftmaxCrossEntropyWithLogits`: the loss and its gradient.

    Over split classes, the maximum of each row, then three sums at once: of the exponentials, the
    labels, and labels by logits.
    """
    expect(operation, [2, 2], [1, 2])
    return _cross_entropy(operation, ["batch", "classes"], 3, 18, 36)


def sparse_cross_entropy(operation: Operation) -> Rule:
    """Return the rule of `SparseSoftmaxCrossEntropyWithLogits`: the loss and its gradient.

    Over split classes, the maximum of each row, then two sums at once: of the exponentials, and of
    the label's logit, which one of the devices has.
    """
    expect(operation, [2, 1], [1, 2])
    return _cross_entropy(operation, ["batch"], 2, 30, 72)


def _cross_entropy(
    operation: Operation, labels: list[Written], sums: int, extra: int, flops: int
) -> Rule:
    both: list[Written] = ["batch", "classes"]
    return make(
        operation,
        [both, labels],
        [["batch"], both],
        inner=[
            Inner("classes", "max", Work(1, ("batch",))),
            Inner("classes", "sum", Work(sums, ("batch",))),
        ],
        extra=[("classes", extra)],
        work=[Work(flops, ("batch", "classes"))],
        backward_work=[Work(1, ("batch", "classes"))],
        constants=[1] if sums == 2 else [],
        loose=[1],
        saved_inputs=(),
        saved_outputs=(1,),
    )


def _image(operation: Operation) -> list[Written]:
    deep: list[Written] = ["depth"] if len(operation.inputs[0].shape) == 5 else []
    space: list[Written] = [*deep, "height", "width"]
    first = str(operation.attribute("data_format", "NHWC")).startswith("NC")
    return ["batch", "channels", *space] if first else ["batch", *space, "channels"]


def _all_but_channels(image: list[Written]) -> list[str]:
    return [str(one) for one in image if one != "channels"]


def batch_norm(operation: Operation) -> Rule:
    """Return the rule of `FusedBatchNormV3`, with the statistics of whole batches.

    The devices add up the values of each channel, then the squares of their differences from the
    mean; for the gradient two sums at once. Without `is_training` nothing is added up. What
    comes after the fifth output is not split.
    """
    image = _image(operation)
    channels: list[Written] = ["channels"]
    spare: list[list[Written]] = [[None] * len(one.shape) for one in operation.outputs[5:]]
    training = operation.attribute("is_training", True)
    gone = _all_but_channels(image)
    return make(
        operation,
        [image, *([channels] * (len(operation.inputs) - 1))],
        [image, *([channels] * len(operation.outputs[1:5])), *spare],
        same=[*([] if training else gone), *(["channels"] if spare else [])],
        inner=[
            *[Inner(factor, "sum", Work(1, ("channels",))) for factor in gone],
            *[Inner(factor, "sum", Work(1, ("channels",))) for factor in gone],
            *[Inner(factor, "sum", Work(2, ("channels",)), backward=True) for factor in gone],
        ]
        if training
        else (),
        # The gradient's sums are the gradients of scale and offset.
        shared=[(f, i) for f in gone for i in (1, 2)] if training else (),
        work=[Work(8, tuple(map(str, image)))],
        backward_work=[Work(12, tuple(map(str, image)))],
        constants=[3, 4],
        loose=range(1, len(operation.outputs)),
        saved_inputs=(0, 1),
    )


def batch_norm_grad(operation: Operation) -> Rule:
    """Return the rule of `FusedBatchNormGradV3`: the gradients of x, scale and offset."""
    image = _image(operation)
    channels: list[Written] = ["channels"]
    spare: list[list[Written]] = [
        [None] * len(one.shape) for one in (*operation.inputs[5:], *operation.outputs[3:])
    ]
    extra = len(operation.inputs[5:])
    return make(
        operation,
        [image, image, channels, channels, channels, *spare[:extra]],
        [image, channels, channels, *spare[extra:]],
        inner=[Inner(factor, "sum", Work(2, ("channels",))) for factor in _all_but_channels(image)],
        same=["channels"] if spare[extra:] else (),
        work=[Work(12, tuple(map(str, image)))],
        backward_work=(),
        constants=range(len(operation.inputs)),
        loose=range(len(operation.outputs)),
        saved_inputs=(),
    )
