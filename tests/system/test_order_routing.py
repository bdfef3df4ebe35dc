"""The example of order routing does what it says, over AMQP, crashes included."""

import subprocess
import sys
from pathlib import Path

from tests.support import free_addresses
from tests.support.checkout import CHECKOUT

EXAMPLE = CHECKOUT / "examples" / "order_routing.py"


def test_orders_are_routed_once_through_a_crash(tmp_path: Path) -> None:
    words = ["--orders", "60", "--crashes", "1", "--folder", str(tmp_path)]
    words += ["--port", str(free_addresses.port())]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 orders accepted over 2 gateways" in done.stdout
