"""What people call: status, drain, undrain, add, remove, canary."""
