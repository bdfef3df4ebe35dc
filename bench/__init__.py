"""The benches of `make bench`: each figure beside a peer or a ceiling measured in the same run."""
