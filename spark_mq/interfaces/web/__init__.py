"""Serve a web page of queues (extra ``web``), also as ``spark-mq web``.

Pages load nothing from other hosts, and only look at queues unless ``allow_changes`` is given.
"""

from spark_mq.inspect.health import HealthLimits
from spark_mq.interfaces.web.app import create_app
from spark_mq.interfaces.web.security import Access, parse_proxies
from spark_mq.interfaces.web.server import serve

__all__ = ["Access", "HealthLimits", "create_app", "parse_proxies", "serve"]
