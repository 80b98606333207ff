"""Apply the stream source's rules without Spark."""
