"""Write and read the Parquet files of ``messages/``."""
