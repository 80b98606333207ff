"""What spark_mq could be replaced by, side by side with it: brokers, tables with one row a message,
a plain Delta stream.
"""
