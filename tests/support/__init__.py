"""Kits that several tests share, one for each part of the system."""
