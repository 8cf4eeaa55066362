"""The stream of a database's changes: its loop, what tables it reads and how, and where these begin."""
