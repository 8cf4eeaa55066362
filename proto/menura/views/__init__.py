"""Views: tables that the sink keeps equal to a SELECT over other tables."""
