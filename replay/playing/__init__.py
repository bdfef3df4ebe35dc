"""Playing recordings: what is meant, when it leaves, with what faults, through what it is sent."""
