"""`make churn`: a lake beside a source that is changed in every way at once, and compared with it at the end."""
