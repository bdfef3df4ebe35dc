"""`feedhandler user`: the hash of a password, to put into a gateway's configuration.

The password comes from the terminal, unseen and twice, or is standard input's first line; never
from an argument, which other users of the machine can read.
"""

import getpass
import sys

from feedhandler.amqp.users import PASSWORD_BYTES_MAX, hash_password
from feedhandler.codecs.errors import UsageError


def run(name: str) -> int:
    """Print an `[[amqp.users]]` table for the user; the password is in it as a hash.

    Raises `UsageError`.
    """
    password = _from_terminal() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError("no password", "type one, or pipe a line of text in")
    if len(password.encode()) > PASSWORD_BYTES_MAX or "\0" in password:
        raise UsageError(f"a password has at most {PASSWORD_BYTES_MAX} bytes, none of them zero")
    print("[[amqp.users]]")
    print(f'name = "{name}"')
    print(f'password = "{hash_password(password)}"')
    print('services = ["*"]')
    return 0


def _from_terminal() -> str:
    password = getpass.getpass("password: ")
    if getpass.getpass("again: ") != password:
        raise UsageError("the two are not the same", "type it again")
    return password
