"""Kernel programs that let unchanged programs send and receive by the overlay."""
