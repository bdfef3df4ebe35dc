"""Recovery protocols by name: the client and the server of each, without I/O."""
