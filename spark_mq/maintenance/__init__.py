"""Run the chores that keep a queue small."""
