"""Let people use queues: the command line and the web page."""
