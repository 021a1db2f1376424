"""What the daemon tells of itself: lifecycle lines."""
