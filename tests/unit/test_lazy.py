"""The front doors of packages: public names stand once, and are imported on first use."""

import importlib
import subprocess
import sys

import pytest

from tests.support.checkout import CHECKOUT

PACKAGES = [
    "feedhandler",
    *(f"feedhandler.{name}" for name in ("config", "gateway", "journal", "keyed", "retrans")),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported(package: str) -> None:
    module = importlib.import_module(package)
    assert len(module.__all__) > 5
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_the_front_doors_list_what_they_import() -> None:
    import feedhandler
    from feedhandler._lazy import lazy_names

    assert sorted(feedhandler.__all__) == lazy_names("feedhandler")("__all__")


def test_a_name_is_imported_when_it_is_first_used() -> None:
    program = (
        "import sys, feedhandler.journal as journal\n"
        "assert 'feedhandler.journal.settings' not in sys.modules\n"
        "from feedhandler.journal import QueueSettings\n"
        "assert 'feedhandler.journal.settings' in sys.modules\n"
        "assert 'feedhandler.journal.queue' not in sys.modules\n"
        "assert vars(journal)['QueueSettings'] is QueueSettings\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True)
