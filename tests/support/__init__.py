"""What several tests need: kits, one for each part of the system."""
