"""Landing: rows and chunks as Parquet files, and the cut log that makes them count."""
