"""What `make bench` runs: each figure beside a peer or a ceiling measured in the same run."""
