"""The stream of a source's changes, once they are decoded: where each table begins, which cut they belong to, and how
they are sent. Of the source it knows no more than `source` says."""
