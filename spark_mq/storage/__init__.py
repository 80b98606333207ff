"""Keep the ledgers and the messages of a queue."""
