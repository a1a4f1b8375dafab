# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Schemas of the kinds in `deploy/kubernetes` that other projects define.

They have the fields that are used, from the definitions of JobSet (v1alpha2), of Kubeflow's
trainer (v1alpha1) and TFJob (v1), of the Prometheus operator (v1) and of kustomize, and are
stricter in places: what makes no sense without a field requires it. The jobs inside are
Kubernetes' own.
"""

from __future__ import annotations

from typing import Any

_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_UNITS = "".join(f"(([0-9]+){unit})?" for unit in ("y", "w", "d", "h", "m", "s", "ms"))
_DURATION = f"^(0|{_UNITS})$"  # of Prometheus


def _object(required: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "properties": fields,
        "additionalProperties": False,
    }


def _list(of: Any) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": 1}


_METADATA = _object(name=_NAME, labels={"type": "object"})


def _kind(version: str, kind: str, spec: Any) -> dict[str, Any]:
    return _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=_METADATA,
        spec=spec,
    )


_JOBSET = _object(
    "replicatedJobs",
    network=_object(
        enableDNSHostnames={"type": "boolean"},
        subdomain=_NAME,
    ),
    successPolicy=_object(
        "operator", operator={"enum": ["All", "Any"]}, targetReplicatedJobs=_list(_NAME)
    ),
    failurePolicy=_object(maxRestarts=_COUNT),
    replicatedJobs=_list(
        _object(
            "name template",
            name=_NAME,
            replicas=_COUNT,
            template=_object("spec", metadata=_METADATA, spec={"type": "object"}),
        )
    ),
)

_REPLICAS = _object(
    "template",
    replicas=_COUNT,
    template=_object("spec", metadata=_object(labels={"type": "object"}), spec={"type": "object"}),
)

SCHEMAS = {
    "JobSet": _kind("jobset.x-k8s.io/v1alpha2", "JobSet", _JOBSET),
    "TrainingRuntime": _kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime",
        _object("template", mlPolicy=_object(numNodes=_COUNT), template=_object(spec=_JOBSET)),
    ),
    "TrainJob": _kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        _object(
            "runtimeRef",
            runtimeRef=_object(
                "name",
                apiGroup={"const": "trainer.kubeflow.org"},
                kind={"enum": ["TrainingRuntime", "ClusterTrainingRuntime"]},
                name=_NAME,
            ),
        ),
    ),
    "PodMonitor": _kind(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        _object(
            "selector podMetricsEndpoints",
            selector=_object(matchLabels={"type": "object"}),
            podMetricsEndpoints=_list(
                _object(
                    port={"type": "string"},
                    path={"type": "string"},
                    interval={"type": "string", "pattern": _DURATION},
                )
            ),
        ),
    ),
    "TFJob": _kind(
        "kubeflow.org/v1",
        "TFJob",
        _object(
            "tfReplicaSpecs",
            runPolicy=_object(cleanPodPolicy={"enum": ["All", "Running", "None"]}),
            tfReplicaSpecs=_object("Chief Worker", Chief=_REPLICAS, PS=_REPLICAS, Worker=_REPLICAS),
        ),
    ),
    "Component": _object(
        "apiVersion kind",
        apiVersion={"const": "kustomize.config.k8s.io/v1alpha1"},
        kind={"const": "Component"},
        resources=_list(_TEXT),
        patches=_list(_object("path target", path=_TEXT, target=_object("kind", kind=_TEXT))),
    ),
    "Kustomization": _object(
        "apiVersion kind resources",
        apiVersion={"const": "kustomize.config.k8s.io/v1beta1"},
        kind={"const": "Kustomization"},
        resources=_list({"type": "string"}),
        images=_list(_object("name", name=_TEXT, newName=_TEXT, newTag=_TEXT)),
    ),
}
