"""Define the pages. Each takes a :class:`~spark_mq.web.view.View` and returns HTML."""
