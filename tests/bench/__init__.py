"""`make bench`: what reading a binary log costs, beside the peers, on the same log in the same run."""
