"""Serve a web page of queues (extra ``web``).

Nothing is loaded from a network. It only looks at queues, unless it is started with
``allow_changes``. ``spark-mq web`` serves it.
"""

from spark_mq.web.app import create_app
from spark_mq.web.looks import Looks
from spark_mq.web.security import Access
from spark_mq.web.server import serve
from spark_mq.web.view import Health

__all__ = ["Access", "Health", "Looks", "create_app", "serve"]
