# What is asked from Python only.
