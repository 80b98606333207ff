"""The rules, metrics and board of examples/monitoring, by Prometheus' and Grafana's own checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.handles import leased

from spark_mq import Queue
from spark_mq.integrations.prometheus import exposition
from spark_mq.testing import ManualClock, memory_queue

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "monitoring"
VARIABLES = {"$__rate_interval": "5m", "$queue": "/queues/orders", "$group": "billing",
             "$destination": "orders"}  # fmt: skip
MINUTES = 30

Run = Callable[..., str]
Step = Callable[[Queue, ManualClock], None]


@pytest.fixture
def promtool(tools: Run) -> Run:
    return lambda *words, **more: tools("promtool", *words, **more)


def text_of(queue: Queue) -> str:
    return exposition({queue.path: queue.describe(lanes=True, durations=True)}).decode()


def test_the_rules_are_what_prometheus_reads(promtool: Run) -> None:
    promtool("check", "rules", FOLDER / "alerts.yml")


def test_the_metrics_are_what_prometheus_reads(promtool: Run, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "orders", durable=False, lanes=8, order="key")
    text_of(queue)
    held = leased(queue, "a", "b", "c")
    held.reject([held.messages[0].sequence])
    held.ack([held.messages[1].sequence])
    queue.sweep()
    text = text_of(queue)
    assert 'spark_mq_time_to_settle_seconds_count{queue="' in text
    promtool("check", "metrics", stdin=text)
    promtool("check", "metrics", stdin="# TYPE a counter\na 1\n", expect=3)


def expressions() -> Iterator[str]:
    board = json.loads((FOLDER / "grafana.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    keda = yaml.safe_load((FOLDER / "keda.yml").read_text())
    yield from (trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"])


def test_each_query_of_the_board_and_of_keda_parses(promtool: Run, tmp_path: Path) -> None:
    rules = []
    for number, query in enumerate(expressions()):
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        assert "$" not in query
        rules.append({"record": f"query:{number}", "expr": query})
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)
    path.write_text(path.read_text().replace("histogram_quantile(", "histogram_quantil("))
    promtool("check", "rules", path, expect=1)


def fail(count: int, queue: Queue, _: ManualClock) -> None:
    lease = publish_and_lease(queue)
    lease.nack([message.sequence for message in lease.messages[:count]], delay="1h")
    lease.ack()


def late_leases(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["m"] * 20)
    clock.advance("10m")
    queue.group("billing").lease("w", max_messages=20).ack()


def slow_handler(queue: Queue, clock: ManualClock) -> None:
    lease = publish_and_lease(queue)
    lease.ack([message.sequence for message in lease.messages[1:]])
    clock.advance("10m")
    lease.ack()


def at_a_limit(queue: Queue, _: ManualClock) -> None:
    queue.publish(["m"] * 20)
    group = queue.group("billing")
    if group.settings.max_in_flight != 1:
        group.configure(max_in_flight=1)
        group.lease("w", visibility_timeout="1h")
    assert group.blocked_because == "max_in_flight"


def paused(queue: Queue, _: ManualClock) -> None:
    queue.group("billing").pause("repairs")


def publish_and_lease(queue: Queue) -> Any:
    queue.publish(["m"] * 20)
    return queue.group("billing").lease("w", max_messages=20, visibility_timeout="1h")


@pytest.mark.parametrize(
    ("step", "fires"),
    [
        (partial(fail, 1), set()),
        (partial(fail, 3), {"SparkMQManyFailures"}),
        (late_leases, {"SparkMQSlowLeases"}),
        (slow_handler, {"SparkMQSlowSettles"}),
        (at_a_limit, set()),
        (paused, {"SparkMQGroupBlocked"}),
    ],
)
def test_an_alert_fires_on_what_a_queue_serves(
    step: Step, fires: set[str], promtool: Run, tmp_path: Path
) -> None:
    """Let Prometheus see a real queue once a minute, and evaluate the rules."""
    clock = ManualClock()
    queue = memory_queue(clock)
    queue.group("billing").ensure()
    looks = [samples(queue)]
    for _ in range(MINUTES):
        step(queue, clock)
        queue.sweep()
        looks.append(samples(queue))
    assert firing(looks, fires, promtool, tmp_path)


def samples(queue: Queue) -> dict[str, float]:
    """The samples of a look by name and labels, without those of times on the clock."""
    found = {}
    for family in text_string_to_metric_families(text_of(queue)):
        for one in family.samples:
            if not one.name.endswith("_timestamp_seconds"):
                labels = ",".join(f"{key}={json.dumps(text)}" for key, text in one.labels.items())
                found[f"{one.name}{{{labels}}}"] = one.value
    return found


def test_an_alert_fires_on_slow_commits(promtool: Run, tmp_path: Path) -> None:
    name = "messaging_client_operation_duration_seconds_bucket"
    looks = []
    for minute in range(MINUTES):
        looks.append({})
        for operation, fast in (("ack", 90), ("lease", 100)):
            labels = (
                'messaging_system="spark_mq",messaging_destination_name="orders",'
                f'messaging_consumer_group_name="g",messaging_operation_name="{operation}"'
            )
            for bound, count in (("2.5", fast), ("5.0", 100), ("+Inf", 100)):
                looks[-1][f'{name}{{{labels},le="{bound}"}}'] = count * minute
    assert firing(looks, {"SparkMQSlowCommits"}, promtool, tmp_path)


def firing(looks: list[dict[str, float]], fires: set[str], promtool: Run, tmp_path: Path) -> bool:
    """Return whether these alerts and no others fire after looks that are a minute apart."""
    series = [
        {"series": name, "values": " ".join(str(look.get(name, "_")) for look in looks)}
        for name in dict.fromkeys(chain.from_iterable(looks))
    ]
    wanted = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fires)]
    seen = 'group by (alertname) (ALERTS{alertstate="firing"})'
    asked = {"expr": seen, "eval_time": f"{MINUTES - 1}m", "exp_samples": wanted}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    given = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "1m"}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({**given, "tests": [test]}))
    return "SUCCESS" in promtool("test", "rules", path)


def test_the_board_follows_the_schema_of_grafana(tools: Run, tmp_path: Path) -> None:
    text = (FOLDER / "grafana.json").read_text()
    tools("check-board", FOLDER / "grafana.json")
    for right, wrong in (
        ('"gridPos"', '"gridpos"'), ('"refresh": "30s"', '"refresh": 30'),
        ('"expr"', '"expression"'), ('"timeseries"', '"timeserie"'), ('"unit": "s"', '"unit": 1'),
    ):  # fmt: skip
        path = tmp_path / "board.json"
        path.write_text(re.sub(re.escape(right), wrong, text, count=1))
        assert path.read_text() != text
        tools("check-board", path, expect=1)
