# Called from Python only.
