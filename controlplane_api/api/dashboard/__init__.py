"""The dashboard's page, style and script, served as they are; a package so that they are installed."""
