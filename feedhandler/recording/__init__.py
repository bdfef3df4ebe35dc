"""Recording: what came in and went out into capture files, with a gateway or without one."""
