"""The receive thread: two lines arbitrated into one stream in order, written to a ring."""
