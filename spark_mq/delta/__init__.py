"""Read and commit Delta logs, on a disk, in a store or in memory."""
