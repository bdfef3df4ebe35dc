"""Recordings: reading and writing capture files, and the datagrams in them."""
