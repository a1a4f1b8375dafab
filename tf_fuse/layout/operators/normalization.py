# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operations that need the sum or maximum of what they split: softmax, cross-entropy, norms.

Only one number for each row (or channel) goes between devices, not the rows. Megatron-LM (Shoeybi
et al., 2019, section 3) computes the cross-entropy over a split vocabulary so.
"""

from __future__ import annotations

from tf_fuse.layout.operation import Operation
from tf_fuse.layout.operators.rule import Inner, Rule, Work, Written, dimension_of, expect, make


def softmax(operation: Operation) -> Rule:
    """`Softmax` and `LogSoftmax`, with `axis`.

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
        # A softmax as oneDNN has it, whose rows that are not finite take some more.
        extra=[(names[at], 5 if operation.kind == "LogSoftmax" else 8)],
        work=[Work(5, tuple(names))],
        backward_work=[Work(4, tuple(names))],
        saved_inputs=(),
        saved_outputs=(0,),
    )


def cross_entropy(operation: Operation) -> Rule:
    """`SoftmaxCrossEntropyWithLogits`, its loss and the loss's gradient by the logits.

    Over split classes, the maximum of each row, then three sums at once: of the exponentials, the
    labels, and labels by logits.
    """
    expect(operation, [2, 2], [1, 2])
    return _cross_entropy(operation, ["batch", "classes"], 3, 18)


def sparse_cross_entropy(operation: Operation) -> Rule:
    """`SparseSoftmaxCrossEntropyWithLogits`, its loss and the loss's gradient by the logits.

    Over split classes, the maximum of each row, then two sums at once: of the exponentials, and of
    the label's logit, which one of the devices has.
    """
    expect(operation, [2, 1], [1, 2])
    return _cross_entropy(operation, ["batch"], 2, 27)


def _cross_entropy(operation: Operation, labels: list[Written], sums: int, extra: int) -> Rule:
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
        work=[Work(6, ("batch", "classes"))],
        backward_work=[Work(1, ("batch", "classes"))],
        constants=[1] if sums == 2 else [],
        loose=[1],
        saved_inputs=(),
        saved_outputs=(1,),
    )


def layer_norm(operation: Operation) -> Rule:
    """`LayerNorm` of x, scale and offset, over the last dimension.

    Over a split last dimension the devices add up the values of each row, then the squares of what
    is left of them without the mean; for the gradient two sums at once.
    """
    expect(operation, [None, 1, 1], [None])
    names = [f"d{i}" for i in range(len(operation.inputs[0].shape))]
    rows, last = tuple(names[:-1]), names[-1]
    return make(
        operation,
        [names, [last], [last]],
        [names],
        inner=[
            Inner(last, "sum", Work(1, rows)),
            Inner(last, "sum", Work(1, rows)),
            Inner(last, "sum", Work(2, rows), backward=True),
        ],
        work=[Work(8, tuple(names))],
        backward_work=[Work(12, tuple(names))],
        saved_inputs=(0, 1),
    )


def _image(operation: Operation) -> list[Written]:
    deep: list[Written] = ["depth"] if len(operation.inputs[0].shape) == 5 else []
    space: list[Written] = [*deep, "height", "width"]
    first = str(operation.attribute("data_format", "NHWC")).startswith("NC")
    return ["batch", "channels", *space] if first else ["batch", *space, "channels"]


def _all_but_channels(image: list[Written]) -> list[str]:
    return [str(one) for one in image if one != "channels"]


def batch_norm(operation: Operation) -> Rule:
    """`FusedBatchNormV3`, of whole batches: where the batch is split, sums go between devices.

    The devices add up the values of each channel, then the squares of what is left of them without
    the mean; for the gradient two sums at once. Without `is_training` nothing is added up. What
    comes behind the fifth output is not split.
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
        # What the gradient adds up are the gradients of scale and offset.
        shared=[(f, i) for f in gone for i in (1, 2)] if training else (),
        work=[Work(8, tuple(map(str, image)))],
        backward_work=[Work(12, tuple(map(str, image)))],
        constants=[3, 4],
        loose=range(1, len(operation.outputs)),
        saved_inputs=(0, 1),
    )


def batch_norm_grad(operation: Operation) -> Rule:
    """`FusedBatchNormGradV3`: the gradients of x, scale and offset of `FusedBatchNormV3`."""
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
