"""What `menura doctor` and `menura agent grants` know of MySQL and MariaDB servers (`agent.doctor.source_doctor`)."""
