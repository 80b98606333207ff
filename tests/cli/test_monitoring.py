"""The queries of the examples ask for metrics, labels and values that are served."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_mq import Message, Queue
from spark_mq.integrations.prometheus import QueueCollector, exposition

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
_METRIC = re.compile(r"\b((?:spark_mq|messaging_client)_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")
_BY = re.compile(r"by \(([^)]*)\)")
Served = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The labels of each sample, by the name of the sample."""
    path = tmp_path_factory.mktemp("monitoring") / "orders"
    queue = Queue.create(path, durable=False, lanes=8)
    queue.describe(durations=True)  # histograms begin with the first look
    queue.publish(["a", "b", "c"])
    queue.group("billing").lease("w").reject()
    queue.sweep()
    queue.group("billing").lease("w")
    queue.publish(Message("d", key="k"))
    queue.group("keyed").configure(order="key")
    found: Served = {}
    looks = {queue.path: queue.describe(lanes=True, durations=True)}
    for family in QueueCollector(lambda: looks).collect():
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
    return found | of_workers(queue)


def of_workers(queue: Queue) -> Served:
    """What Prometheus makes of the histograms that a process reports to OpenTelemetry."""
    otel = pytest.importorskip("support.otel")
    with pytest.MonkeyPatch.context() as patch:
        sdk = otel.set_up_sdk(patch)
        queue.publish("e")
        queue.group("billing").lease("w").ack()
        (resource,) = sdk.reader.get_metrics_data().resource_metrics
        metrics = {one.name: one for scope in resource.scope_metrics for one in scope.metrics}
    name = "messaging.client.operation.duration"
    return {
        f"{name.replace('.', '_')}_seconds_bucket": [
            {key.replace(".", "_"): str(value) for key, value in point.attributes.items()}
            | {"le": "5.0"}
            for point in metrics[name].data.data_points
            if point.attributes["messaging.operation.name"] == "ack"
        ]
    }


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def board() -> Any:
    return json.loads((FOLDER / "grafana.json").read_text())


def queries() -> dict[str, str]:
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    for panel in board()["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for trigger in yaml.safe_load((FOLDER / "keda.yml").read_text())["spec"]["triggers"]:
        found["keda"] = trigger["metadata"]["query"]
    for variable in board()["templating"]["list"]:
        if variable["type"] == "query":
            found[variable["name"]] = variable["query"]
    return found


@pytest.mark.parametrize("name", queries())
def test_a_query_asks_for_what_is_served(name: str, served: Served) -> None:
    asked = _METRIC.findall(queries()[name])
    assert asked
    for metric, matchers in asked:
        assert metric in served
        for label, how, value in _MATCHER.findall(matchers):
            assert label in served[metric][0], f"{metric} has no label {label}"
            if label in ("state", "outcome"):
                values = value.split("|") if how == "=~" else [value]
                assert set(values) <= {labels[label] for labels in served[metric]}
    for by in _BY.findall(queries()[name]):
        metric, _ = asked[0]
        assert {label.strip() for label in by.split(",")} <= set(served[metric][0])


def test_texts_name_labels_that_are_served(served: Served) -> None:
    for rule in alerts():
        metric, _ = _METRIC.findall(rule["expr"])[0]
        named = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert set(named) <= set(served[metric][0]), rule["alert"]
    for panel in board()["panels"]:
        for target in panel["targets"]:
            metric, _ = _METRIC.findall(target["expr"])[0]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(served[metric][0])


def test_the_board_shows_every_gauge(served: Served) -> None:
    shown = {metric for query in queries().values() for metric, _ in _METRIC.findall(query)}
    shown |= {name.replace("_bucket", part) for name in shown for part in ("_sum", "_count")}
    assert {name for name in served if not name.endswith("_created")} <= shown


def test_the_alert_for_sweeps_knows_a_queue_that_was_never_swept(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish("a")
    assert queue.group("billing").lease("w") is not None
    (rule,) = [one for one in alerts() if one["alert"] == "SparkMQNotSwept"]
    text = exposition({queue.path: queue.describe()}).decode()
    served = dict(line.rsplit(" ", 1) for line in text.splitlines())
    ((metric, _),) = _METRIC.findall(rule["expr"])
    assert rule["expr"] == f"time() - {metric} > 3600"
    since = queue.sweep_state().waiting_since
    assert float(served[f'{metric}{{queue="{queue.path}"}}']) == since.timestamp()


def test_the_text_is_what_prometheus_client_makes_of_the_collector(tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client")
    parser = pytest.importorskip("prometheus_client.parser")
    queue = Queue.create(tmp_path / 'a "b" c', durable=False, lanes=8)
    queue.publish(["a", "b", Message("c", key="k", priority=9)])
    queue.group("two").configure(order="key")
    queue.describe(durations=True)
    for name in ("one", "two"):
        lease = queue.group(name).lease("w", max_messages=2)
        lease.ack([lease.messages[0].sequence])
    looks = {queue.path: queue.describe(lanes=True, durations=True), "/no \\n\n queue": None}
    registry = client.CollectorRegistry()
    registry.register(QueueCollector(lambda: looks))
    parse = parser.text_string_to_metric_families
    theirs = list(parse(client.generate_latest(registry).decode()))
    assert list(parse(exposition(looks).decode())) == theirs
    assert len(theirs) > 12
