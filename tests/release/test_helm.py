"""The chart in examples/deploy/helm, rendered by Helm and checked by the schemas of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "examples" / "deploy" / "helm" / "spark-mq"
LEAST = ("--set", "queue=s3://bucket/orders", "--set", "worker.handler=/app/billing.py:handle")
VERSIONS = ("1.25.0", "1.37.0")
"""The oldest Kubernetes that the chart admits, and the newest whose schemas the validator has."""

pytestmark = pytest.mark.slow  # Helm takes minutes to compile

Run = Callable[..., str]
Manifests = dict[tuple[str, str], dict[str, Any]]


def render(tools: Run, tmp_path: Path, *arguments: str) -> Manifests:
    """Render the chart, check the result in strict mode, and return it by kind and name."""
    text = tools("helm", "template", "orders", CHART, *LEAST, *arguments)
    path = tmp_path / "rendered.yaml"
    path.write_text(text)
    for kubernetes in VERSIONS:
        tools("kubernetes-validate", "-k", kubernetes, "--strict", path)
    found = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return {(m["kind"], m["metadata"]["name"]): m for m in found}


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]
    if manifest["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return dict(spec["template"]["spec"])


def test_helm_lint_finds_nothing(tools: Run) -> None:
    tools("helm", "lint", "--strict", CHART, *LEAST)


def test_the_chart_has_the_version_of_the_package(version: str) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize(
    "bad", ["queue=", "worker.handler=billing", "worker.treads=4", "web.enabled=true",
            "sweep.schedule=hourly", "environment.RETRIES=3"],
)  # fmt: skip
def test_a_bad_value_is_refused_by_the_schema(tools: Run, bad: str) -> None:
    tools("helm", "template", "orders", CHART, *LEAST, "--set", bad, expect=1)


def test_the_least_values_give_workers_that_may_finish_and_a_sweep(
    tools: Run, tmp_path: Path
) -> None:
    manifests = render(tools, tmp_path)
    assert {*manifests} == {
        ("ConfigMap", "orders"), ("ServiceAccount", "orders"), ("Deployment", "orders-worker"),
        ("PodDisruptionBudget", "orders-worker"), ("CronJob", "orders-sweep"),
    }  # fmt: skip
    worker = pod(manifests["Deployment", "orders-worker"])
    arguments = worker["containers"][0]["args"]
    shutdown = arguments[arguments.index("--shutdown-timeout") + 1]
    assert worker["terminationGracePeriodSeconds"] == int(shutdown.removesuffix("s")) + 15
    assert manifests["CronJob", "orders-sweep"]["spec"]["concurrencyPolicy"] == "Forbid"
    variables = manifests["ConfigMap", "orders"]["data"]
    assert variables == {"SPARK_MQ_QUEUE": "s3://bucket/orders", "SPARK_MQ_GROUP": "default"}


def test_all_that_the_chart_can_do_fits_the_schemas_and_the_command_line(
    tools: Run, tmp_path: Path, parse_command: Callable[..., None]
) -> None:
    values = {
        "environment": {"AWS_REGION": "eu-central-1"},
        "existingSecret": "store",
        "image": {"pullSecrets": ["registry"]},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"}},
        "podLabels": {"azure.workload.identity/use": "true"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "extraVolumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "queues"}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": "/queues"}],
        "worker": {"handlerConfigMap": "handlers", "keda": {"enabled": True}},
        "web": {"enabled": True, "existingSecret": "page", "allowChanges": True},
        "networkPolicy": {"enabled": True, "webFrom": [{"namespaceSelector": {}}]},
    }
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values))
    manifests = render(tools, tmp_path, "--values", str(path))
    scaled = manifests["ScaledObject", "orders-worker"]["spec"]
    (trigger,) = scaled["triggers"]
    query = 'sum(spark_mq_messages{queue="s3://bucket/orders", group="default", '
    assert trigger["metadata"]["query"].startswith(query)
    assert "replicas" not in manifests["Deployment", "orders-worker"]["spec"]  # KEDA sets them
    assert ("NetworkPolicy", "orders-web") in manifests
    account = manifests["ServiceAccount", "orders"]["metadata"]["annotations"]
    assert account == values["serviceAccount"]["annotations"]
    run = [one for (kind, _), one in manifests.items() if kind in ("Deployment", "CronJob")]
    assert len(run) == 3
    for spec in map(pod, run):
        assert spec["securityContext"]["runAsNonRoot"]
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert {"name": "data", "mountPath": "/queues"} in container["volumeMounts"]
        parse_command(*container["args"], **manifests["ConfigMap", "orders"]["data"])
