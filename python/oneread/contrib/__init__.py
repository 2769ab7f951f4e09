"""What other packages load by name."""
