"""The commands of FIX over multicast."""
