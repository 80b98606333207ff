"""Keep the tables of a queue: messages, ledgers and their archives."""
