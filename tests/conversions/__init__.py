"""`make conversions`: tables altered again and again between writes, and their lake compared with them at the end."""
