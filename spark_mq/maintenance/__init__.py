"""The chores that keep a queue small, and the repair, redrive and drop of a queue."""
