"""The commands of the overlay multicast."""
