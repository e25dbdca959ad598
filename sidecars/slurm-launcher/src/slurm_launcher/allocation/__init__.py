"""Inside the job: starts, watches and ends what the plan says."""
