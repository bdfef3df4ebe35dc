"""`python -m feedhandler` is the `feedhandler` command."""

from feedhandler.cli import main

if __name__ == "__main__":
    main()
