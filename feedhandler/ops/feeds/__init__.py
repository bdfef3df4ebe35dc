"""The commands about descriptions of feeds."""
