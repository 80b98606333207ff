"""Run a worker for plain Python: lease messages, call a handler, and settle.

A task is a lease or a message, and ends with a verdict. A :class:`~spark_mq.worker.feed.GroupFeed`
makes the tasks of one group and settles them. A pool of threads or coroutines calls the handler::

    lease -> GroupFeed --task--> pool --handler--> verdict -> GroupFeed --commit--> ledger
"""
