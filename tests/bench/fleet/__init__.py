"""`make bench-fleet`: what thousands of agents cost a gateway, and how soon they hear of what is asked of them."""
