"""Search: indexes of the lake's tables and views, which follow them as they change."""
