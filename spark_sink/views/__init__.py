"""Views: a table of the lake that is kept equal to a SELECT over others."""
