"""Call a handler for each message, and settle many together.

A :class:`~spark_mq.per_message.feed.GroupFeed` leases many messages of one group together, and
settles the finished ones. A pool of threads or coroutines calls the handler. One
:class:`~spark_mq.per_message.work.MessageWork` runs a pool for the feeds of several groups::

    GroupFeed --task--> pool --handler(message)--> end --> GroupFeed --one commit--> ledger
"""
