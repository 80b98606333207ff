"""Read and write the data files of messages."""
