"""Programs of the kernel that let unchanged programs send and receive by the overlay."""
