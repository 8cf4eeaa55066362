"""What `menura doctor` and `menura agent grants` know of PostgreSQL servers (`agent.doctor.source_doctor`)."""
