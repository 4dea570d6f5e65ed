"""What can grow in a slot, by host family, and how it is blended in."""
