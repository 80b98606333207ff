"""Read and commit the logs of Delta tables."""
